"""Groups of Kafka's classic protocol, in which a member, the leader, assigns the partitions.

The coordinator in `runtime` passes events and stores changes, as for groups of the protocol of KIP-848. A group has
members of one of the two protocols at a time; its committed offsets do not depend on the protocol.
"""
