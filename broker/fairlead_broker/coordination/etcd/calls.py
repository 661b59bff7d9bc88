"""Methods of etcd's v3 API that Fairlead uses, with their paths and message types.

`members` calls the methods, and `keep_alives` and `watch` open the streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from fairlead_broker.coordination.etcd import etcd_pb2 as messages

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Call(Generic[Request, Answer]):
    """One method of etcd's API."""

    path: str
    request: type[Request]
    answer: type[Answer]


RANGE: Final = Call("/etcdserverpb.KV/Range", messages.RangeRequest, messages.RangeResponse)
TXN: Final = Call("/etcdserverpb.KV/Txn", messages.TxnRequest, messages.TxnResponse)
COMPACT: Final = Call("/etcdserverpb.KV/Compact", messages.CompactionRequest, messages.CompactionResponse)
WATCH: Final = Call("/etcdserverpb.Watch/Watch", messages.WatchRequest, messages.WatchResponse)
LEASE_GRANT: Final = Call(
    "/etcdserverpb.Lease/LeaseGrant", messages.LeaseGrantRequest, messages.LeaseGrantResponse
)
LEASE_REVOKE: Final = Call(
    "/etcdserverpb.Lease/LeaseRevoke", messages.LeaseRevokeRequest, messages.LeaseRevokeResponse
)
LEASE_KEEP_ALIVE: Final = Call(
    "/etcdserverpb.Lease/LeaseKeepAlive", messages.LeaseKeepAliveRequest, messages.LeaseKeepAliveResponse
)
LEASE_TIME_TO_LIVE: Final = Call(
    "/etcdserverpb.Lease/LeaseTimeToLive", messages.LeaseTimeToLiveRequest, messages.LeaseTimeToLiveResponse
)
STATUS: Final = Call("/etcdserverpb.Maintenance/Status", messages.StatusRequest, messages.StatusResponse)
AUTHENTICATE: Final = Call(
    "/etcdserverpb.Auth/Authenticate", messages.AuthenticateRequest, messages.AuthenticateResponse
)
