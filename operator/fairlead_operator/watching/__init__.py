"""Input of the operator: changes of Kubernetes' objects by kopf, and requests of probes and scrapers.

Changes go into the cache, and their keys into the work queue; this room decides nothing. `wiring` runs it. It must not
know how a resource is reconciled.
"""
