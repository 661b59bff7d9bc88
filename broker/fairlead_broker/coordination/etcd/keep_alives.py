"""Keep-alives for all leases of a client on one stream. Each answer is matched to its request.

`client` uses this module. An answer must never be matched to a later request, because the lease would then be
considered alive for too long. Requests are therefore sent one at a time, and a stream with an abandoned request is not
used again.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from fairlead_broker.coordination.etcd import etcd_pb2 as messages
from fairlead_broker.coordination.etcd.calls import LEASE_KEEP_ALIVE
from fairlead_broker.coordination.etcd.failures import StreamBroken
from fairlead_broker.coordination.etcd.member import Member, Metadata
from fairlead_broker.coordination.etcd.members import Members
from fairlead_broker.coordination.protocol import CoordinationUnavailable, Lease, LeaseNotFound

ATTEMPTS_PER_TTL: Final = 4
"""Number of keep-alive attempts within one time to live. If a member does not answer within a quarter of the time to
live, there is still time to try another member.
"""

_Stream = grpc.aio.StreamStreamCall[messages.LeaseKeepAliveRequest, messages.LeaseKeepAliveResponse]


class KeepAlives:
    """Stream that restarts the time to live of leases."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._turn = asyncio.Lock()
        self._stream: _Stream | None = None
        self._member: Member | None = None

    async def keep_alive(self, lease: Lease) -> None:
        """Restart the time to live of a lease.

        Returns when etcd has confirmed a request that was sent during this call. Raises `LeaseNotFound`.
        """

        async def exchange(member: Member, metadata: Metadata, limit_seconds: float) -> int:
            async with asyncio.timeout(limit_seconds), self._turn:
                return await self._exchange(member, metadata, lease)

        patience = self._members.patience
        left_seconds = await self._members.run(
            exchange,
            call_seconds=min(patience.call_seconds, lease.ttl_seconds),
            attempt_seconds=min(patience.attempt_seconds, lease.ttl_seconds / ATTEMPTS_PER_TTL),
        )
        if left_seconds <= 0:
            raise LeaseNotFound(lease.lease_id)

    def close(self) -> None:
        """End the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    async def _exchange(self, member: Member, metadata: Metadata, lease: Lease) -> int:
        stream = self._opened(member, metadata)
        try:
            await stream.write(messages.LeaseKeepAliveRequest(ID=lease.lease_id))
            answer = await stream.read()
        except BaseException:
            self.close()
            raise
        if not isinstance(answer, messages.LeaseKeepAliveResponse):
            self.close()
            msg = "the stream of keep-alive messages was ended"
            raise StreamBroken(msg)
        if lease.lease_id != answer.ID:
            self.close()
            msg = f"etcd answered a keep-alive of lease {lease.lease_id} with an answer for lease {answer.ID}"
            raise CoordinationUnavailable(msg)
        self._members.check_cluster(member, answer)
        return answer.TTL

    def _opened(self, member: Member, metadata: Metadata) -> _Stream:
        if self._stream is None or self._member is not member or self._stream.done():
            self.close()
            self._stream, self._member = member.stream(LEASE_KEEP_ALIVE, metadata), member
        return self._stream
