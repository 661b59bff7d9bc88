"""Which broker keeps which replica.

Called by `controller` when partitions are made. Plain functions; knows brokers and racks, not topics or stores. Must
have no clock, loop, disk, network or chance.
"""
