"""What runs the work of a broker: disk threads, rounds of fsync, supervised tasks, memory budgets, the lag of the loop.

Used by every other room of `runtime`. The engine knows neither partitions' roles nor the cluster.
"""
