"""Custom resource definitions, generated from the models of the resources at build time.

`docs/generate` writes the definitions into `manifests/crds/` and generates the reference pages from them. A running
operator never loads this package. The package must not depend on any particular field: the models declare which checks
the API server makes.
"""
