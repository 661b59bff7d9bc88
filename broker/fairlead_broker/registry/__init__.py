"""The cluster's records in the coordination store: keys, values, and writes.

Every package of the broker reads these plain values. The format of the values is permanent, since the values are
stored. The registry is the lowest package of the broker: it depends neither on stores nor on decisions, and must
have no clock, event loop, disk access, network access or randomness.
"""
