"""One idempotent reconcile for each kind: observe, plan, act, tell; fed by an own queue of keys."""
