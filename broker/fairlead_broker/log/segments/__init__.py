"""One segment of a log: batches, indexes, writer, readers, damage, and the file operations below these modules.

The other modules of `log` call this folder. A segment knows no other segment and no partition.
"""
