"""Coordination on etcd, with Fairlead's own gRPC client.

The broker's wiring calls `connect`, and other packages use `coordination.protocol`. Only this package knows about
gRPC. The package must not know the meaning of keys and values.
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
