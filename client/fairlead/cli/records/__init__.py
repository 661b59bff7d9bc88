"""Formats of records on the command line: lines, JSON rows, column files, positions."""
