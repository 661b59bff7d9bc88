"""Deletion of a namespace: releases Topics and Rebalances while the operator has permissions in the namespace.

The deletion of a namespace also deletes the operator's roles in the namespace, and perhaps the operator itself; only in
listed namespaces does the operator keep its rights until its resources are released (`lasting_rights`). Kubernetes
deletes the pods of a namespace before its other objects. The operator checks the namespace when pods terminate, and
must remove its finalizers before the pods are gone: later, a finalizer of the operator would block the deletion
permanently. `cluster` calls this module when pods terminate, `topic` and `rebalance` call it before they add a
finalizer and when their resource is deleted, and `wiring` calls it when the operator itself stops.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_operator.naming import (
    FINALIZERS,
    LINK,
    NAMESPACE,
    REBALANCE,
    TOPIC,
    USER,
    Kind,
    Manifest,
    ObjectRef,
)
from fairlead_operator.plan.topic_admission import claimed_by
from fairlead_operator.ports import ApiError, Conflict, Forbidden, KubernetesApi, ObjectCache
from fairlead_operator.reconcile.finalizers import is_held, take_off
from fairlead_operator.telemetry import Log

ATTEMPTS_MAX: Final = 5
"""Maximum number of attempts to write a resource that other writers change concurrently."""
LAST_SECONDS: Final = 10.0
"""Deadline for the last calls of a stopping operator, well within the grace period of its pod."""


class NamespaceEnd:
    """Detects namespaces being deleted, and removes the operator's finalizer from the resources in these namespaces."""

    def __init__(self, api: KubernetesApi, cache: ObjectCache) -> None:
        self._api = api
        self._cache = cache

    def holds_resources(self, namespace: str) -> bool:
        """Return whether a known resource in the namespace has the operator's finalizer."""
        return any(is_held(manifest) for kind in FINALIZERS for manifest in self._cache.all(kind, namespace))

    async def has_begun(self, namespace: str) -> bool:
        """Return whether the namespace is being deleted or no longer exists; a deletion cannot be cancelled."""
        try:
            found = await self._api.get(ObjectRef(NAMESPACE, "", namespace))
        except Forbidden:
            # A namespace that the operator has no permission to read counts as not being deleted.
            return False
        return found is None or found["metadata"].get("deletionTimestamp") is not None

    async def let_go(self, namespace: str, *, all_topics: bool = False) -> bool:
        """Release the resources of a namespace that is being deleted; return whether the namespace is being deleted.

        A Topic whose Cluster is in another namespace is not released, since its topic must be deleted first. With
        `all_topics`, which is set when the operator itself stops, Topics whose Cluster is in another namespace are also
        released.
        """
        if not await self.has_begun(namespace):
            return False
        for manifest in self._cache.all(TOPIC, namespace):
            claimed = claimed_by(manifest)
            if all_topics or claimed is None or claimed.cluster_namespace == namespace:
                await self._release(TOPIC, manifest)
        for kind in (REBALANCE, USER, LINK):
            for manifest in self._cache.all(kind, namespace):
                await self._release(kind, manifest)
        return True

    async def _release(self, kind: Kind, manifest: Manifest) -> None:
        """Remove the operator's finalizer, with a few retries on conflicts. Raises `ApiError`."""
        metadata = manifest["metadata"]
        ref, live = ObjectRef(kind, metadata["namespace"], metadata["name"]), manifest
        for _ in range(ATTEMPTS_MAX):
            try:
                await take_off(self._api, live)
            except Conflict:
                found = await self._api.get(ref)
                if found is None:
                    return
                live = found
            else:
                return


async def let_go_at_the_end(end: NamespaceEnd, own_namespace: str, log: Log) -> None:
    """Release the resources of the operator's own namespace if that namespace is being deleted. Never raises."""
    if not end.holds_resources(own_namespace):
        # Without resources to release, no call is made: the operator might not watch the namespace, and might have no
        # permissions in it.
        return
    try:
        async with asyncio.timeout(LAST_SECONDS):
            if await end.let_go(own_namespace, all_topics=True):
                log.info("resources released", namespace=own_namespace)
    except (ApiError, TimeoutError) as error:
        log.warning("resources not released", namespace=own_namespace, error=str(error))
