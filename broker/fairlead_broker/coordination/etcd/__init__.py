"""Coordination on etcd: a thin client of our own on gRPC.

Called by the broker's wiring, through `connect`; other rooms use `coordination.protocol`. The only room that knows
gRPC. Must not know the meaning of keys and values.
"""

from fairlead_broker.coordination.etcd.client import EtcdCoordination, connect
from fairlead_broker.coordination.etcd.failures import CredentialsRefused, WrongCluster
from fairlead_broker.coordination.etcd.options import EtcdOptions, EtcdPatience, EtcdTls, EtcdUser

__all__ = [
    "CredentialsRefused",
    "EtcdCoordination",
    "EtcdOptions",
    "EtcdPatience",
    "EtcdTls",
    "EtcdUser",
    "WrongCluster",
    "connect",
]
