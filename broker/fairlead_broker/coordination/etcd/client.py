"""Coordination on an etcd cluster.

`connect` creates a client for the broker's wiring and for tests. Other packages use `protocol.Coordination`. If a
member fails, reads, lease calls and compactions are sent to another member. A transaction is sent to another
member only if the first member definitely did not apply the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Self

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.etcd import etcd_pb2 as messages
from fairlead_broker.coordination.etcd.calls import (
    AUTHENTICATE,
    COMPACT,
    LEASE_GRANT,
    LEASE_REVOKE,
    LEASE_TIME_TO_LIVE,
    RANGE,
    STATUS,
    TXN,
    WATCH,
)
from fairlead_broker.coordination.etcd.failures import (
    AUTHENTICATION_OFF,
    COMPACTED,
    FUTURE_REVISION,
    LEASE_NOT_FOUND,
    TOO_LARGE,
    CredentialsRefused,
    Refused,
    StreamBroken,
)
from fairlead_broker.coordination.etcd.keep_alives import KeepAlives
from fairlead_broker.coordination.etcd.member import Member, Metadata
from fairlead_broker.coordination.etcd.members import CLOSED, Members
from fairlead_broker.coordination.etcd.options import EtcdOptions
from fairlead_broker.coordination.etcd.translation import (
    key_after,
    key_range,
    key_value,
    transaction_request,
    transaction_result,
)
from fairlead_broker.coordination.etcd.watch import EtcdWatch
from fairlead_broker.coordination.protocol import (
    PAGE_KEYS_MAX,
    Compacted,
    CoordinationClosed,
    CoordinationError,
    FutureRevision,
    Lease,
    LeaseNotFound,
    Page,
    TransactionTooLarge,
    check_transaction,
)
from fairlead_broker.registry.store_writes import Compare, Get, LeaseId, Operation, Put, TransactionResult


async def connect(options: EtcdOptions) -> EtcdCoordination:
    """Return a client of an etcd cluster once a member has answered and accepted the credentials.

    Raises `CoordinationUnavailable` with the reason for each unreachable member, `CredentialsRefused`, and
    `WrongCluster` if the members belong to several clusters or to a different cluster than expected.
    """
    client = EtcdCoordination(options)
    try:
        await client.check()
    except BaseException:
        await client.close()
        raise
    return client


class EtcdCoordination:
    """A client of etcd, with the interface `protocol.Coordination`."""

    def __init__(self, options: EtcdOptions) -> None:
        """Create a client that connects at its first call. `connect` also checks the options."""
        self._members = Members(options)
        self._keep_alives = KeepAlives(self._members)
        self._watches: set[EtcdWatch] = set()

    @property
    def cluster_id(self) -> int | None:
        """Id of the etcd cluster, or None before a member has answered."""
        return self._members.cluster_id

    async def check(self) -> None:
        """Connect to every configured member, and authenticate with one member (see `connect`)."""
        await self._members.check()

    async def has_users(self) -> bool:
        """Return whether etcd has users. Without users, every client that etcd admits has all rights."""
        try:
            await self._members.ask(AUTHENTICATE, messages.AuthenticateRequest())
        except Refused as refusal:
            return AUTHENTICATION_OFF not in refusal.reason
        except CredentialsRefused:
            return True
        return True

    async def list(
        self,
        prefix: str,
        *,
        revision: Revision | None = None,
        after: str | None = None,
        limit: int = PAGE_KEYS_MAX,
    ) -> Page:
        """Read the keys under a prefix (see `Coordination.list`)."""
        start, end = key_range(prefix)
        request = messages.RangeRequest(
            key=start if after is None else key_after(after),
            range_end=end,
            revision=revision or 0,
            limit=min(limit, PAGE_KEYS_MAX),
        )
        try:
            answer = await self._members.ask(RANGE, request)
        except Refused as refusal:
            raise await self._about_revision(refusal, prefix, revision or Revision(0)) from refusal
        items = tuple(key_value(item) for item in answer.kvs)
        read_at = Revision(answer.header.revision) if revision is None else revision
        return Page(items, read_at, items[-1].key if answer.more else None)

    def watch(self, prefix: str, from_revision: Revision) -> EtcdWatch:
        """Watch the keys under a prefix (see `Coordination.watch`)."""
        if self._members.closed:
            raise CoordinationClosed(CLOSED)
        watch = EtcdWatch(self._members, prefix, from_revision, self._watches.discard)
        self._watches.add(watch)
        return watch

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Apply one branch of a transaction atomically (see `Coordination.transact`)."""
        check_transaction(compares, success, failure)
        request = transaction_request(compares, success, failure)
        reads_only = all(isinstance(operation, Get) for operation in (*success, *failure))
        try:
            answer = await self._members.ask(TXN, request, repeatable=reads_only)
        except Refused as refusal:
            raise await self._about_transaction(refusal, request, (*success, *failure)) from refusal
        return transaction_result(answer)

    async def grant_lease(self, ttl_seconds: int) -> Lease:
        """Grant a lease. etcd grants a time to live of at least 1.5 times its election timeout.

        If the answer to a grant is lost, the granted lease has no keys and expires.
        """
        answer = await self._members.ask(LEASE_GRANT, messages.LeaseGrantRequest(TTL=ttl_seconds))
        return Lease(LeaseId(answer.ID), answer.TTL)

    async def keep_alive(self, lease: Lease) -> None:
        """Restart the lease's time to live."""
        await self._keep_alives.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        """End a lease and remove its keys.

        After a lost answer, `LeaseNotFound` may mean that an earlier attempt of the same call has ended the lease.
        """
        try:
            await self._members.ask(LEASE_REVOKE, messages.LeaseRevokeRequest(ID=lease.lease_id))
        except Refused as refusal:
            if LEASE_NOT_FOUND in refusal.reason:
                raise LeaseNotFound(lease.lease_id) from refusal
            raise

    async def compact(self, revision: Revision) -> None:
        """Drop the history before a revision."""
        try:
            await self._members.ask(COMPACT, messages.CompactionRequest(revision=revision))
        except Refused as refusal:
            if COMPACTED not in refusal.reason:
                raise await self._about_revision(refusal, "", revision) from refusal

    async def close(self) -> None:
        """End this client's watches, calls and connections.

        The client's leases continue until they expire or are revoked.
        """
        self._members.closed = True
        for watch in tuple(self._watches):
            await watch.close()
        self._keep_alives.close()
        await self._members.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _about_revision(self, refusal: Refused, prefix: str, revision: Revision) -> CoordinationError:
        """Return the error for a request whose revision etcd has refused.

        The refusal does not state etcd's revisions, so they are read with another request.
        """
        if FUTURE_REVISION in refusal.reason:
            status = await self._members.ask(STATUS, messages.StatusRequest())
            return FutureRevision(revision, Revision(status.header.revision))
        if COMPACTED in refusal.reason:
            return Compacted(await self._members.run(partial(compacted_revision, prefix, revision)))
        return refusal

    async def _about_transaction(
        self, refusal: Refused, request: messages.TxnRequest, operations: Sequence[Operation]
    ) -> CoordinationError:
        """Return the error for a refused transaction."""
        if any(sentence in refusal.reason for sentence in TOO_LARGE):
            # The limit of this etcd cluster is below the default, and the refusal does not state the limit.
            return TransactionTooLarge("bytes", request.ByteSize(), request.ByteSize() - 1)
        if LEASE_NOT_FOUND in refusal.reason:
            leases = {each.lease_id for each in operations if isinstance(each, Put) and each.lease_id}
            return LeaseNotFound(await self._ended_lease(sorted(leases)))
        return refusal

    async def _ended_lease(self, leases: Sequence[LeaseId]) -> LeaseId:
        """Return the ended lease, which etcd's refusal does not name."""
        for lease_id in leases[:-1]:
            request = messages.LeaseTimeToLiveRequest(ID=lease_id)
            if (await self._members.ask(LEASE_TIME_TO_LIVE, request)).TTL < 0:
                return lease_id
        return leases[-1]


async def compacted_revision(
    prefix: str, revision: Revision, member: Member, metadata: Metadata, limit_seconds: float
) -> Revision:
    """Return the oldest kept revision, which etcd reports only to a watch that starts at a compacted revision."""
    stream = member.stream(WATCH, metadata)
    key, range_end = key_range(prefix)
    create = messages.WatchCreateRequest(key=key, range_end=range_end, start_revision=revision, fragment=True)
    try:
        async with asyncio.timeout(limit_seconds):
            await stream.write(messages.WatchRequest(create_request=create))
            while isinstance(response := await stream.read(), messages.WatchResponse):
                if response.compact_revision:
                    return Revision(response.compact_revision)
                if not response.created or response.canceled:
                    raise StreamBroken(response.cancel_reason or "it has not compacted that far")
            raise StreamBroken("the stream was ended")
    finally:
        stream.cancel()
