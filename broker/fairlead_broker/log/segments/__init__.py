"""One segment of a log: its batches, indexes, writer, readers, damage, and the file operations below them.

Called by the other modules of `log`. A segment knows no other segment and no partition.
"""
