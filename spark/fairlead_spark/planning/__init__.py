"""Planning of reads, without I/O: derives offsets from the options of a read, and splits a read into tasks."""
