"""The HTTP face of a broker: listeners, routes, one file per family of calls, one handler of problems.

Callers: ``wiring`` builds ``listeners.Listeners`` around a ``Broker``. This room translates between HTTP and
the runtime and decides nothing about logs, replication or coordination; it never touches a disk or another broker.
"""
