"""Cleaning of one log: the rounds, the program of the process that runs them, and the swap of segments.

A round reads and writes files next to the log's; `partition_log` swaps segments. The package must not know any state of
a log other than its files: the order for a round contains all other facts.
"""
