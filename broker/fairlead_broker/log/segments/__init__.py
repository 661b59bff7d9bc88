"""One segment of a log: batches, indexes, writer, readers, damage, and file operations.

The other modules of `log` use this package. A segment does not depend on other segments or on a partition.
"""
