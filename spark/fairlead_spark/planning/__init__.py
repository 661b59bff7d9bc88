"""Planning of reads, without I/O: offsets for the options of a read, and the split of a read into tasks."""
