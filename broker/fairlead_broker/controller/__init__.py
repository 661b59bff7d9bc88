"""Decisions of the controller: leaders, and the creation, growth, change and deletion of topics.

Plain functions from the registered records to the transactions that should follow; `controlling` runs them. Must have
no clock, loop, disk, network or chance.
"""
