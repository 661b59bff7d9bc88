"""What comes in from outside: changes of Kubernetes' objects by kopf, and the questions of probes and scrapers.

Changes go into the cache, and the keys that they concern into the work queue; nothing is decided here. `wiring` runs
it. It must not know how a resource is reconciled.
"""
