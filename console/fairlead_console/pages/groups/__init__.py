"""Pages about consumer groups: the list, one group, and the reset of its offsets."""
