"""Coordination on etcd: a thin client of our own on gRPC.

Called by the broker's wiring, through `connect`; everybody else sees `coordination.protocol`. The only room that
knows gRPC. Must not know what the keys and values mean.
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
