"""One request with the facts about its connection that the families of calls need.

`connection` builds a call from each frame, and `dispatch` passes the call to the family of its API.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from fairlead_broker.access.caller import Caller
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.kafka.protocol.apis import Api
from fairlead_broker.kafka.protocol.frames import RequestHeader


class CloseConnection(Exception):
    """Raised by a call to close the connection instead of sending a response; the message states the reason."""


@dataclass(slots=True)
class Client:
    """Client at the other end of a connection."""

    address: str
    port: int
    is_known: bool = True
    """Whether the client may use APIs other than those for authentication."""
    token: bytes | None = None
    """Token with which the connection authenticated; None if it has used no token."""
    principal: str | None = None
    """Principal of the token."""
    certificate: Caller | None = None
    """Caller of requests without a token, named by the client's certificate; None without such a certificate."""
    mechanism: str | None = None
    """SASL mechanism of the next SaslAuthenticate; None without a handshake."""
    software: tuple[str, str] | None = None
    """Name and version that the client stated with ApiVersions."""
    counted_as: tuple[str, str] | None = None
    """Name and version under which the metrics count the client."""
    produce_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that a produce call holds until its batches are queued at their partitions, so that batches from one
    connection are stored in the order of the requests."""
    quota_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that a request holds while it waits for the quotas of its caller."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class KafkaCall:
    """Request to one API in one version."""

    api: Api
    header: RequestHeader
    request: Any
    """Decoded request, with the attributes from Kafka's definition."""
    client: Client
    access: CallerAccess
    is_audited: bool = False
    """Whether a record of the request is in the audit log."""

    @property
    def version(self) -> int:
        """Version of the request and of its response."""
        return self.header.version

    @property
    def audit_caller(self) -> Caller:
        """Caller of the request, as the audit log names it."""
        return self.access.caller

    @property
    def audit_facts(self) -> dict[str, str]:
        """Address and API of the request, for the audit log."""
        return {"address": self.client.address, "route": f"kafka:{self.api.name}"}
