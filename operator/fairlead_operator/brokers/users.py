"""Tokens and access rules of one principal, as the brokers store them.

The reconciler of Users calls this module. Each call has a deadline. Records are created with the name of their owner;
lists contain the records of all owners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from datetime import timedelta

from fairlead import Admin
from fairlead.errors import AclNotFoundError, QuotaNotFoundError, TokenNotFoundError
from fairlead_api.access_needs import Kind
from fairlead_api.bodies.quotas import QuotaDescription
from fairlead_api.bodies.security import AclDescription, CreatedToken, TokenDescription
from fairlead_operator.brokers.calls import broker_deadline
from fairlead_operator.plan.securing.cluster_records import CLUSTER_OWNER, plan_shared_quotas
from fairlead_operator.plan.securing.user import WantedAcl, plan_acls


async def quota_of(admin: Admin, principal: str) -> QuotaDescription | None:
    """Return the quota of exactly this principal, not of a pattern; None if the principal has no quota.

    Raises `BrokersUnavailable`.
    """
    async with broker_deadline(f"quota of {principal}"):
        return next((each for each in await admin.quotas(principal) if each.subject == principal), None)


async def put_quota(admin: Admin, principal: str, limits: Mapping[str, int], owner: str) -> None:
    """Set the quota of a principal. Raises `BrokersUnavailable`."""
    async with broker_deadline(f"quota of {principal}"):
        await admin.put_quota(principal, each=limits, owner=owner)


async def remove_quota(admin: Admin, principal: str) -> None:
    """Remove the quota of a principal, if the principal has one. Raises `BrokersUnavailable`."""
    async with broker_deadline(f"quota of {principal}"):
        with contextlib.suppress(QuotaNotFoundError):
            await admin.remove_quota(principal, force=True)


async def list_records(admin: Admin, principal: str) -> tuple[list[AclDescription], list[TokenDescription]]:
    """Return the access rules and the tokens of a principal. Raises `BrokersUnavailable`."""
    async with broker_deadline(f"access rules of {principal}"):
        return await admin.acls(principal), await admin.tokens(principal)


async def create_acls(admin: Admin, principal: str, acls: Iterable[WantedAcl], owner: str) -> None:
    """Create access rules. Raises `BrokersUnavailable`."""
    for acl in acls:
        async with broker_deadline(f"access rule of {principal}"):
            await admin.create_acl(
                principal,
                acl.operations,
                acl.kind,
                acl.pattern,
                effect="allow" if acl.effect == "allow" else "deny",
                owner=owner,
            )


async def bring_cluster_acls(admin: Admin, wanted: Mapping[str, frozenset[WantedAcl]]) -> None:
    """Create and remove the access rules of a Cluster itself, by principal. Raises `BrokersUnavailable`."""
    async with broker_deadline("access rules of the Cluster"):
        stored = await admin.acls(kind=Kind.CLUSTER)
    for principal, rules in wanted.items():
        plan = plan_acls(rules, CLUSTER_OWNER, [each for each in stored if each.principal == principal])
        await create_acls(admin, principal, plan.missing, CLUSTER_OWNER)
        await remove_acls(admin, plan.unwanted)


async def bring_shared_quotas(admin: Admin, wanted: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """Set and remove the quotas that Users share; return reasons why quotas cannot be set.

    Raises `BrokersUnavailable`.
    """
    async with broker_deadline("quotas of the Cluster"):
        plan = plan_shared_quotas(wanted, await admin.quotas())
    for subject, limits in plan.put.items():
        async with broker_deadline(f"quota of {subject}"):
            await admin.put_quota(subject, shared=limits, owner=CLUSTER_OWNER)
    for subject in plan.remove:
        await remove_quota(admin, subject)
    return plan.conflicts


async def remove_acls(admin: Admin, acl_ids: Iterable[str]) -> None:
    """Remove access rules, skipping rules that no longer exist. Raises `BrokersUnavailable`."""
    for acl_id in acl_ids:
        async with broker_deadline("removal of an access rule"):
            try:
                await admin.remove_acl(acl_id, force=True)
            except AclNotFoundError:
                continue


async def create_token(admin: Admin, principal: str, life: timedelta, owner: str) -> CreatedToken:
    """Create a token. Raises `BrokersUnavailable`."""
    async with broker_deadline(f"token of {principal}"):
        return await admin.create_token(principal, expires_in=life, owner=owner)


async def revoke_tokens(admin: Admin, token_ids: Iterable[str]) -> None:
    """Revoke tokens, skipping tokens that no longer exist. Raises `BrokersUnavailable`."""
    for token_id in token_ids:
        async with broker_deadline("revocation of a token"):
            try:
                await admin.revoke_token(token_id, force=True)
            except TokenNotFoundError:
                continue
