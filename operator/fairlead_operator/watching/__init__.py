"""Input of the operator: changes to Kubernetes objects, reported by kopf, and HTTP requests of probes and scrapers.

Changed objects are stored in the cache, and the affected keys are added to the work queue. `wiring` runs this package,
which must not depend on how a resource is reconciled.
"""
