"""Reconciles a User: its access rules in the cluster, and its token in a Secret.

The order is safe if the operator crashes at any step: the finalizer is set before the first record is created, access
rules are created before the token and removed after it, and a token that did not reach the Secret is revoked in the
next pass.
Records and objects of other owners are never changed. All decisions are made by `plan.securing.user`.
"""

from __future__ import annotations

import base64
import contextlib
from datetime import timedelta
from typing import Final

from fairlead import Admin
from fairlead.errors import ClusterError
from fairlead_api.bodies.security import TokenDescription
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.resource import InvalidResource
from fairlead_api.resources.user import User, UserStatus
from fairlead_operator.brokers.calls import BrokerCalls, BrokersUnavailable
from fairlead_operator.brokers.users import (
    create_acls,
    create_token,
    list_records,
    put_quota,
    quota_of,
    remove_acls,
    remove_quota,
    revoke_tokens,
)
from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    CLUSTER,
    CONFIG_MAP,
    RENEW_TOKEN_ANNOTATION,
    SECRET,
    USER,
    USER_FINALIZER,
    Manifest,
    ObjectRef,
    authority_name,
)
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.observed import is_paused
from fairlead_operator.plan.securing.user import (
    bootstrap_of,
    hours_of,
    owner_of,
    plan_acls,
    plan_quota,
    plan_token,
    refusal,
    wanted_acls,
    wanted_limits,
)
from fairlead_operator.plan.securing.user_status import (
    interrupted_status,
    unreadable_status,
    user_status,
    warnings_of,
)
from fairlead_operator.plan.topic_admission import is_leaving
from fairlead_operator.ports import Conflict, Key, KubernetesApi, NotFound, ObjectCache
from fairlead_operator.reconcile.finalizers import take_off
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.namespace_end import NamespaceEnd
from fairlead_operator.reconcile.statuses import status_manifest
from fairlead_operator.render.users import TOKEN, account_map, user_secret

CONFLICT_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 10.0
"""Pause before brokers that do not answer are called again."""


class UserReconciler:
    """Implements `ports.Reconciler` for Users."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        brokers: BrokerCalls,
        clock: Clock,
        rights: LastingRights,
    ) -> None:
        self._api = api
        self._cache = cache
        self._brokers = brokers
        self._clock = clock
        self._rights = rights
        self._end = NamespaceEnd(api, cache)

    async def reconcile(self, key: Key) -> float | None:
        """See `ports.Reconciler`."""
        try:
            pause = await self._pass(key)
            await self._rights.settle(key.namespace)
        except Conflict:
            return CONFLICT_SECONDS
        return pause

    async def _pass(self, key: Key) -> float | None:
        manifest = await self._api.get(ObjectRef(USER, key.namespace, key.name))
        if manifest is None:
            return None
        try:
            user = User.parse(manifest)
        except InvalidResource as error:
            await self._report_unreadable(manifest, error)
            return None
        cluster = self._cache.get(ObjectRef(CLUSTER, user.cluster_namespace, user.spec.cluster_ref.name))
        if user.metadata.deletion_timestamp is not None:
            return await self._remove(user, manifest, cluster)
        if is_paused(manifest):
            paused = Finding("Annotation", "the annotation fairlead.dev/paused is set on this User")
            status = interrupted_status(user, ConditionName.RECONCILIATION_PAUSED, paused, self._clock.now())
            await self._write(user, manifest, status)
            return None
        finding = refusal(user, cluster)
        if cluster is None or (finding is not None and finding.reason == "ClusterNotFound"):
            await self._report(user, manifest, finding, cluster)
            return None
        return await self._bring(user, manifest, cluster, finding)

    async def _bring(
        self, user: User, manifest: Manifest, cluster: Manifest, finding: Finding | None
    ) -> float | None:
        """Make records and objects match the User; a User that is not allowed has no records or objects (rule K10)."""
        if finding is None and not await self._hold(user, manifest):
            return None
        token: tuple[str | None, str | None] = (None, None)
        try:
            if finding is not None:
                if USER_FINALIZER in user.metadata.finalizers:
                    await self._withdraw(user, cluster)
            else:
                finding, token = await self._grant(user, cluster)
        except (BrokersUnavailable, ClusterError) as error:
            finding = Finding("ClusterNotReady", f"the cluster did not carry out the request: {error}")
            await self._report(
                user, manifest, finding, cluster, (user.status.token_id, user.status.expires_at)
            )
            return RETRY_SECONDS
        await self._report(user, manifest, finding, cluster, token)
        return None

    async def _grant(
        self, user: User, cluster: Manifest
    ) -> tuple[Finding | None, tuple[str | None, str | None]]:
        """Create missing records and objects; remove surplus ones; return a finding, and the token's id and expiry."""
        secret = None
        if user.spec.service_account_name is None:
            secret = await self._api.get(ObjectRef(SECRET, user.namespace, user.secret_name))
            if secret is not None and not _is_of(secret, user):
                message = f"Secret {user.secret_name} exists and does not belong to this User"
                return Finding("SecretNotOurs", message), (None, None)
        admin = await self._brokers.admin(cluster)
        owner = owner_of(user)
        acls, tokens = await list_records(admin, user.principal)
        rules = plan_acls(wanted_acls(user), owner, acls)
        await create_acls(admin, user.principal, rules.missing, owner)
        bootstrap, authorities = bootstrap_of(cluster), self._authorities(cluster)
        published: tuple[str | None, str | None] = (None, None)
        if user.spec.service_account_name is None:
            published = await self._bring_token(user, admin, secret, tokens, (bootstrap, authorities))
        else:
            wanted = account_map(user, bootstrap, authorities)
            live = await self._api.get(ObjectRef(CONFIG_MAP, user.namespace, user.name))
            if live is not None and not _is_of(live, user):
                message = f"ConfigMap {user.name} exists and does not belong to this User"
                return Finding("SecretNotOurs", message), (None, None)
            await self._api.apply_if_changed(wanted, live)
        await remove_acls(admin, rules.unwanted)
        return await self._bring_quota(user, admin), published

    async def _bring_quota(self, user: User, admin: Admin) -> Finding | None:
        """Set or remove the quota of the principal; return a finding if another owner has set a quota (rule K11)."""
        owner, limits = owner_of(user), wanted_limits(user)
        plan = plan_quota(limits, owner, await quota_of(admin, user.principal))
        if plan.put:
            await put_quota(admin, user.principal, limits, owner)
        if plan.remove:
            await remove_quota(admin, user.principal)
        return Finding("Conflict", plan.conflict) if plan.conflict else None

    async def _bring_token(
        self,
        user: User,
        admin: Admin,
        secret: Manifest | None,
        tokens: list[TokenDescription],
        place: tuple[str, str],
    ) -> tuple[str | None, str | None]:
        text = _text_in(secret)
        plan = plan_token(user, _id_in(text), tokens, self._clock.now())
        published = (None, None) if plan.current is None else (plan.current.token_id, plan.current.expires_at)
        await revoke_tokens(admin, plan.revoke)
        if plan.create:
            life = timedelta(hours=hours_of(user.token.expire_after))
            made = await create_token(admin, user.principal, life, owner_of(user))
            text, published = made.token, (made.token_id, made.expires_at)
        wanted = user_secret(user, text, *place)
        if secret is None or secret.get("data") != wanted["data"]:
            await self._api.apply(wanted)
        if RENEW_TOKEN_ANNOTATION in user.metadata.annotations:
            await self._api.patch(
                ObjectRef(USER, user.namespace, user.name),
                {"metadata": {"annotations": {RENEW_TOKEN_ANNOTATION: None}}},
            )
        return published

    async def _withdraw(self, user: User, cluster: Manifest) -> None:
        """Revoke all tokens of the User, then remove its access rules and its quota."""
        admin = await self._brokers.admin(cluster)
        owner = owner_of(user)
        acls, tokens = await list_records(admin, user.principal)
        await revoke_tokens(admin, [each.token_id for each in tokens if each.owner == owner])
        await remove_acls(admin, [each.acl_id for each in acls if each.owner == owner])
        quota = await quota_of(admin, user.principal)
        if quota is not None and quota.owner == owner:
            await remove_quota(admin, user.principal)

    async def _remove(self, user: User, manifest: Manifest, cluster: Manifest | None) -> float | None:
        """Remove all records of the User from its cluster, unless the cluster is deleted, and release the resource."""
        if USER_FINALIZER not in user.metadata.finalizers:
            return None
        if cluster is not None and not is_leaving(cluster):
            try:
                await self._withdraw(user, cluster)
            except (BrokersUnavailable, ClusterError) as error:
                if not await self._end.has_begun(user.namespace):
                    waits = Finding("Deleting", f"the access rules are not removed yet: {error}")
                    status = interrupted_status(user, ConditionName.READY, waits, self._clock.now())
                    await self._write(user, manifest, status)
                    return RETRY_SECONDS
        await take_off(self._api, manifest)
        return None

    async def _hold(self, user: User, manifest: Manifest) -> bool:
        """Add the operator's finalizer; return False if the resource no longer exists."""
        if USER_FINALIZER in user.metadata.finalizers:
            return True
        await self._rights.hold(user.namespace)
        patch: Manifest = {"metadata": {"finalizers": [*user.metadata.finalizers, USER_FINALIZER]}}
        version = manifest["metadata"]["resourceVersion"]
        try:
            await self._api.patch(ObjectRef(USER, user.namespace, user.name), patch, resource_version=version)
        except NotFound:
            return False
        return True

    def _authorities(self, cluster: Manifest) -> str:
        metadata = cluster["metadata"]
        ref = ObjectRef(CONFIG_MAP, metadata["namespace"], authority_name(metadata["name"]))
        return str(((self._cache.get(ref) or {}).get("data") or {}).get("ca.crt", ""))

    async def _report(
        self,
        user: User,
        manifest: Manifest,
        finding: Finding | None,
        cluster: Manifest | None,
        token: tuple[str | None, str | None] = (None, None),
    ) -> None:
        now = self._clock.now()
        warnings = () if cluster is None else warnings_of(user, cluster, token[1], now)
        await self._write(user, manifest, user_status(user, finding, warnings, token, now))

    async def _write(self, user: User, manifest: Manifest, status: UserStatus) -> None:
        with contextlib.suppress(NotFound):
            await self._api.apply_status_if_changed(
                status_manifest(ObjectRef(USER, user.namespace, user.name), status.manifest()), manifest
            )

    async def _report_unreadable(self, manifest: Manifest, error: InvalidResource) -> None:
        metadata = manifest["metadata"]
        if metadata.get("deletionTimestamp") is not None:
            await take_off(self._api, manifest)
            return
        try:
            before = UserStatus.model_validate(manifest.get("status") or {})
        except ValueError:
            before = UserStatus()
        status = unreadable_status(before, metadata.get("generation", 0), str(error), self._clock.now())
        published = status_manifest(
            ObjectRef(USER, metadata["namespace"], metadata["name"]), status.manifest()
        )
        await self._api.apply_status_if_changed(published, manifest)


def _is_of(live: Manifest, user: User) -> bool:
    """Return whether the User owns an object."""
    owners = live["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == user.metadata.uid for owner in owners if owner.get("controller"))


def _text_in(secret: Manifest | None) -> str:
    """Return the token in a Secret; empty if the Secret has no token."""
    if secret is None:
        return ""
    try:
        return base64.b64decode(str((secret.get("data") or {}).get(TOKEN, ""))).decode("ascii").strip()
    except ValueError:
        return ""


def _id_in(text: str) -> str:
    """Return the id of an API token from its text; empty if the text is not an API token."""
    parts = text.split("_")
    return parts[1] if len(parts) == 3 else ""
