"""Plans, computed without I/O: the next actions and the conditions, derived from the desired and the observed state."""
