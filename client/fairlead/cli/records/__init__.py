"""Forms of records on the command line: lines, JSON rows, files of columns, positions."""
