"""Infrastructure of the runtime: disk threads, sync rounds, supervised tasks, memory budgets, loop lag.

Every other package of `runtime` uses the engine. The engine does not depend on the roles of partitions or on the
cluster.
"""
