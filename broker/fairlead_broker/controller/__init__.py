"""Decisions of the controller: leaders, and the creation, growth, change and deletion of topics.

The functions of this room return the transactions that follow from the stored records, and `controlling` runs
these transactions. The room must have no clock, event loop, disk access, network access or randomness.
"""
