"""Changes tokens, ACLs and quotas on request, and waits until every broker has applied the change.

`server` uses this module for the calls of section 3.4 of the security contract. A change is answered once the mirrors
of all registered brokers have reached its revision, or after a time limit (rule Z10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from fairlead_api.bodies.quotas import QuotaRequest, limits_of
from fairlead_api.bodies.security import AclRequest, CreateTokenRequest
from fairlead_api.identifiers import BrokerId, Revision, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_api.token_text import TokenText
from fairlead_broker.access.acl_index import Acl
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.security import SecurityAdmin
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.security_records import AclRecord, QuotaRecord, TokenRecord
from fairlead_broker.runtime.security_view import acl_of

APPLIED_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS: Final = 0.05
"""Seconds between two requests to a broker whose mirror is behind."""


class SecurityChanges:
    """Implementation of the calls that change tokens, ACLs and quotas."""

    def __init__(
        self,
        admin: SecurityAdmin,
        mirror: Mirror,
        peers: Peers,
        clock: Clock,
        new_token: Callable[[], TokenText],
    ) -> None:
        """`new_token` returns a token of random characters."""
        self._admin = admin
        self._mirror = mirror
        self._peers = peers
        self._clock = clock
        self._new_token = new_token

    async def create_token(self, request: CreateTokenRequest, by: str) -> tuple[TokenText, TokenRecord]:
        """Store a token of the requested principal; return its text and its record."""
        now_us = self._clock.now_us()
        token = self._new_token()
        life = request.expires_in_seconds
        record = TokenRecord(
            principal=request.principal,
            secret_sha256=token.secret_sha256,
            created_us=TimestampUs(now_us),
            created_by=by,
            expires_us=None if life is None else TimestampUs(now_us + life * 1_000_000),
            note=request.note,
            owner=request.owner,
        )
        if not await self._admin.put_token(token.token_id, record):
            raise ProblemError("conflict", "the random id of the token is taken")
        return token, record

    async def keep_token(self, token: TokenText, principal: str) -> bool:
        """Store a given token without an expiry, unless its id exists; return whether the token was stored."""
        record = TokenRecord(
            principal=principal,
            secret_sha256=token.secret_sha256,
            created_us=TimestampUs(self._clock.now_us()),
            created_by=principal,
            note="admin_token_file",
        )
        return await self._admin.put_token(token.token_id, record)

    async def revoke_token(self, token_id: str, *, force: bool) -> None:
        """Revoke a token. Raises `token_not_found`."""
        await self._admin.revoke_token(token_id, force=force)

    async def create_acl(self, request: AclRequest, by: str) -> tuple[Acl, AclRecord, bool]:
        """Store an ACL; return the ACL, its record, and whether the ACL is new."""
        record = AclRecord(
            effect=request.effect,
            principal=request.principal,
            operations=tuple(sorted(set(request.operations))),
            kind=request.kind,
            pattern=request.pattern,
            created_us=TimestampUs(self._clock.now_us()),
            created_by=by,
            owner=request.owner,
        )
        acl = acl_of(record)
        created = await self._admin.put_acl(acl, record)
        stored = self._mirror.metadata.acls.get(acl.acl_id)
        return acl, record if stored is None else stored.value, created

    async def remove_acl(self, acl_id: str, *, force: bool) -> None:
        """Remove an ACL. Raises `acl_not_found`."""
        await self._admin.remove_acl(acl_id, force=force)

    async def put_quota(self, subject: str, request: QuotaRequest, by: str, *, force: bool) -> QuotaRecord:
        """Store the whole quota of a subject, and return its record."""
        record = QuotaRecord(
            each=limits_of(request.each),
            shared=limits_of(request.shared),
            changed_us=TimestampUs(self._clock.now_us()),
            changed_by=by,
            owner=request.owner,
        )
        await self._admin.put_quota(subject, record, force=force)
        return record

    async def remove_quota(self, subject: str, *, force: bool) -> None:
        """Remove a quota. Raises `quota_not_found`."""
        await self._admin.remove_quota(subject, force=force)

    async def applied_everywhere(self) -> bool:
        """Return whether the mirrors of all registered brokers reach this broker's revision within the time limit."""
        metadata, own = self._mirror.metadata, self._peers.own.broker
        revision = metadata.security_revision
        try:
            async with asyncio.timeout(APPLIED_SECONDS_MAX):
                others = [broker for broker in metadata.brokers if broker != own]
                await asyncio.gather(*(self._wait_for(broker, revision) for broker in others))
        except TimeoutError:
            return False
        return True

    async def _wait_for(self, broker: BrokerId, revision: Revision) -> None:
        """Send requests to a broker until its mirror has reached a revision, or the broker is no longer registered.

        Any answer from a peer contains the peer's revision, so a request for the log ends of no partitions is
        sufficient.
        """
        while self._peers.seen_revision(broker) < revision and broker in self._mirror.metadata.brokers:
            with suppress(PeerUnavailable, ProblemError):
                await self._peers.log_ends(broker, ())
            if self._peers.seen_revision(broker) < revision:
                # The peer's mirror is behind, or the peer does not answer; no event announces the change.
                await asyncio.sleep(PAUSE_SECONDS)  # noqa: TID251
