"""Composition root: assembles, starts and stops a broker, and makes no decisions of its own.

`start` starts a broker with its listeners; `broker` opens a broker without listeners. Each of the other modules
(`engine`, `replicas`, `calls`, `upkeep`, `endpoints`) consists of functions that build one group of components. The
package is used by the commands, and by tests that need a whole broker.
"""
