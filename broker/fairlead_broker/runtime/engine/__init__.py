"""The means by which a broker runs its work: disk threads, sync rounds, supervised tasks, memory budgets, loop lag.

Used by every other room of `runtime`. The engine knows neither partitions' roles nor the cluster.
"""
