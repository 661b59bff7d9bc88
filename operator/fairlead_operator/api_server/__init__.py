"""The only package that calls the API server: requests, the cache of objects, Events, and leadership.

`wiring` builds the classes of this package; `reconcile/` and `watching/` use them through the Protocols of `ports`. The
package must not depend on the purpose of the Kubernetes objects.
"""
