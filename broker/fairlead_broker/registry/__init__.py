"""What is written down about the cluster: keys, records, and transactions on them.

Plain values, read by every room of the broker; permanent, since they lie in coordination. The lowest room: knows
neither stores nor who decides what. Must have no clock, loop, disk, network or chance.
"""
