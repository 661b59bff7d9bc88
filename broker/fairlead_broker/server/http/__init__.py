"""HTTP layer: listeners, heads, bodies, admission, negotiation, dispatch, answers, problems.

Used by the other packages of `server`. The package must not depend on any particular call.
"""
