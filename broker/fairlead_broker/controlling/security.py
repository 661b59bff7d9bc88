"""Changes to API tokens, ACLs and quotas, by compare-and-set (rules A11 to A13, Z4, Z12).

The broker that received the request executes the change, so that the text of a token never passes between brokers.
Every broker reads the changed records from its mirror.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fairlead_api.problems import ProblemError
from fairlead_broker.access.acl_index import Acl
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.security_records import AclRecord, QuotaRecord, TokenRecord
from fairlead_broker.registry.store_writes import Delete, Put, Transaction, absent, unchanged_since

TOKENS_MAX: Final = 10_000
ACLS_MAX: Final = 10_000
QUOTAS_MAX: Final = 1_000
"""Maximum number of quotas. A request is charged to the shared quotas of all matching prefixes."""
_Owned: TypeAlias = Versioned[TokenRecord] | Versioned[AclRecord] | Versioned[QuotaRecord]


class SecurityAdmin:
    """Changes to tokens and ACLs. Each method returns when the mirror shows the change.

    Every call may raise `ProblemError` `conflict` and `coordination_unavailable`.
    """

    def __init__(self, coordination: Coordination, mirror: Mirror) -> None:
        self._metadata = mirror.metadata
        self._runner = PlanRunner(coordination, mirror)

    async def put_token(self, token_id: str, record: TokenRecord) -> bool:
        """Store a token under an unused id, and return whether the token was stored.

        Raises `conflict` if the cluster already has the maximum number of tokens.
        """
        key = self._metadata.keys.token(token_id)

        def plan(_: int) -> Sequence[Transaction]:
            if token_id in self._metadata.tokens:
                return ()
            _check_count(self._metadata.tokens, TOKENS_MAX, "tokens")
            return (Transaction((absent(key),), (Put(key, encode(record)),)),)

        return await self._runner.begin(plan)

    async def revoke_token(self, token_id: str, *, force: bool) -> None:
        """Remove a token. Raises `token_not_found`, and `conflict` for a token that a program manages."""

        def found() -> Versioned[TokenRecord]:
            token = self._metadata.tokens.get(token_id)
            if token is None:
                raise ProblemError(
                    "token_not_found", f"no token has the id {token_id}", data={"token_id": token_id}
                )
            return token

        await self._remove(self._metadata.keys.token, token_id, found, force=force)

    async def put_acl(self, acl: Acl, record: AclRecord) -> bool:
        """Store an ACL, and return whether the ACL is new.

        Raises `conflict` if the cluster already has the maximum number of ACLs.
        """
        key = self._metadata.keys.acl(acl.acl_id)

        def plan(_: int) -> Sequence[Transaction]:
            if acl.acl_id in self._metadata.acls:
                return ()
            _check_count(self._metadata.acls, ACLS_MAX, "ACLs")
            return (Transaction((absent(key),), (Put(key, encode(record)),)),)

        return await self._runner.begin(plan)

    async def release_acl(self, acl_id: str) -> None:
        """Remove the owner of an ACL, which stays. An ACL that does not exist is left alone."""
        key = self._metadata.keys.acl(acl_id)

        def plan(_: int) -> Sequence[Transaction]:
            stored = self._metadata.acls.get(acl_id)
            if stored is None or stored.value.owner is None:
                return ()
            record = msgspec.structs.replace(stored.value, owner=None)
            return (Transaction((unchanged_since(key, stored.mod_revision),), (Put(key, encode(record)),)),)

        await self._runner.complete(plan)

    async def remove_acl(self, acl_id: str, *, force: bool) -> None:
        """Remove an ACL. Raises `acl_not_found`, and `conflict` for an ACL that a program manages."""

        def found() -> Versioned[AclRecord]:
            acl = self._metadata.acls.get(acl_id)
            if acl is None:
                raise ProblemError("acl_not_found", f"no ACL has the id {acl_id}", data={"acl_id": acl_id})
            return acl

        await self._remove(self._metadata.keys.acl, acl_id, found, force=force)

    async def put_quota(self, subject: str, record: QuotaRecord, *, force: bool) -> None:
        """Store a quota, which replaces the previous quota of the subject.

        Raises `conflict` if the cluster already has the maximum number of quotas, and for a quota that a program
        manages unless the new quota has the same owner.
        """
        key = self._metadata.keys.quota(subject)

        def plan(_: int) -> Sequence[Transaction]:
            stored = self._metadata.quotas.get(subject)
            if stored is None:
                _check_count(self._metadata.quotas, QUOTAS_MAX, "quotas")
                return (Transaction((absent(key),), (Put(key, encode(record)),)),)
            if stored.value.owner not in (None, record.owner) and not force:
                raise managed(stored.value.owner)
            return (Transaction((unchanged_since(key, stored.mod_revision),), (Put(key, encode(record)),)),)

        await self._runner.begin(plan)

    async def remove_quota(self, subject: str, *, force: bool) -> None:
        """Remove a quota. Raises `quota_not_found`, and `conflict` for a quota that a program manages."""

        def found() -> Versioned[QuotaRecord]:
            quota = self._metadata.quotas.get(subject)
            if quota is None:
                raise ProblemError("quota_not_found", f"{subject} has no quota", data={"subject": subject})
            return quota

        await self._remove(self._metadata.keys.quota, subject, found, force=force)

    async def _remove(
        self, key_of: Callable[[str], str], name: str, found: Callable[[], _Owned], *, force: bool
    ) -> None:
        def plan(_: int) -> Sequence[Transaction]:
            stored = found()
            owner = stored.value.owner
            if owner is not None and not force:
                raise managed(owner)
            # A name that is not stored may be empty or too long for a key.
            key = key_of(name)
            return (Transaction((unchanged_since(key, stored.mod_revision),), (Delete(key),)),)

        await self._runner.begin(plan)


def managed(owner: str | None) -> ProblemError:
    """Return the problem for a change to a record that a program manages."""
    return ProblemError(
        "conflict", f"{owner} manages this record and would create it again; force=true changes it"
    )


def _check_count(stored: Mapping[str, object], limit: int, what: str) -> None:
    if len(stored) >= limit:
        raise ProblemError("conflict", f"the cluster has {len(stored)} {what}, the maximum is {limit}")
