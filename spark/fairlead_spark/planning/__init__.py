"""Pure: what the options of a read mean in offsets, and how a read is shared out over tasks."""
