"""The records of the cluster in coordination: keys, values, and transactions on them.

Every room of the broker reads these plain values. Their form is permanent, since the values are stored. The
lowest room of the broker: it knows neither stores nor decisions, and must have no clock, loop, disk, network
or randomness.
"""
