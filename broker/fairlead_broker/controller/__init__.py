"""Decisions of the controller: elections of leaders, and creation, growth, change and deletion of topics.

The functions of this package compute transactions from the records in the coordination store, and `controlling` runs
the transactions. The package must have no clock, event loop, disk access, network access or randomness.
"""
