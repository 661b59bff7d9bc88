"""Plans, without I/O: the next actions and the conditions, from the desired and the observed state."""
