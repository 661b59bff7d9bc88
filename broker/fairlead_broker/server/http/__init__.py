"""HTTP layer: listeners, heads, bodies, admission, negotiation, dispatch, answers, problems.

Used by the other rooms of `server`. The room must not depend on any particular call.
"""
