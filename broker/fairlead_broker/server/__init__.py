"""HTTP interface of a broker: listeners, routes, one file per family of calls, one problem handler.

Callers: ``wiring`` builds ``listeners.Listeners`` around a ``Broker``. This package translates between HTTP and the
runtime. The package makes no decisions about logs, replication or coordination, and never accesses a disk.
"""
