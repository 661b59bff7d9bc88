"""Decisions about links, which mirror topics of another cluster: eras, the copying of a partition, promotions.

The runtime of every broker, the controller, the simulator and the model of links call these functions. The package is
pure: it has no clock, event loop, disk access, network access or randomness.
"""
