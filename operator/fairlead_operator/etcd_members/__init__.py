"""Calls to etcd members through the JSON gateway; the only package of the operator that depends on etcd's API."""

from fairlead_operator.etcd_members.client import EtcdMembersClient
from fairlead_operator.etcd_members.errors import (
    EtcdError,
    EtcdRefused,
    EtcdUnavailable,
    LearnerNotInSync,
    MemberNotFound,
)

__all__ = [
    "EtcdError",
    "EtcdMembersClient",
    "EtcdRefused",
    "EtcdUnavailable",
    "LearnerNotInSync",
    "MemberNotFound",
]
