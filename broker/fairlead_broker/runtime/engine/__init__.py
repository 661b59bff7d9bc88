"""Machinery that runs a broker's work: disk threads, sync rounds, supervised tasks, memory budgets, loop lag.

The room is used by every other room of `runtime`. The engine knows neither partitions' roles nor the cluster.
"""
