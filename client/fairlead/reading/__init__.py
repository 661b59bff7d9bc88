"""Reading partitions: cursors, fetches ahead, decoded batches, offsets by time."""
