"""The records of the cluster in coordination: keys, values, and transactions on them.

Plain values, read by every room of the broker; their form is permanent, since they are stored. The lowest room of the
broker: it knows neither stores nor decisions. Must have no clock, loop, disk, network or chance.
"""
