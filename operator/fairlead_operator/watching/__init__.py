"""Input of the operator: changes of Kubernetes objects through kopf, and requests of probes and scrapers.

Changes are stored in the cache, and their keys are added to the work queue. `wiring` runs this room, which must not
know how a resource is reconciled.
"""
