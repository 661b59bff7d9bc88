"""Makes the custom resource definitions from the models of the resources, at build time only.

`docs/generate` writes what this room returns into `manifests/crds/` and makes the reference pages from it; the
operator at work never loads it. It must not know any single field: what the API server is to check stands on the
models.
"""
