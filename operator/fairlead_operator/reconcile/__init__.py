"""Idempotent reconcilers, one for each kind, and the work queue: observe, plan, act, report."""
