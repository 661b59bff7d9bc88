"""One segment of a log: batches, indexes, writer, readers, damage, and the file operations below these modules.

The other modules of `log` use this package. A segment depends neither on other segments nor on a partition.
"""
