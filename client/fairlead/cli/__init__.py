"""The command line, which speaks HTTP only."""
