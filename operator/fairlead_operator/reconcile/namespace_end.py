"""A namespace in deletion: its Topics are released while the operator may still write there.

Deleting a namespace deletes the operator's roles in it, and perhaps the operator. Kubernetes ends the pods of a
namespace before its other objects, so ending pods are the sign to look, and the time until they are gone is the time to
act: afterwards a finalizer of the operator would hold the namespace for ever. Called by `cluster` when pods end, by
`topic` before it adds a finalizer and when a Topic is deleted, and by `wiring` when the operator itself is stopped.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_operator.naming import NAMESPACE, TOPIC, TOPIC_FINALIZER, Manifest, ObjectRef
from fairlead_operator.plan.topic_admission import claimed_by
from fairlead_operator.ports import ApiError, Conflict, Forbidden, KubernetesApi, ObjectCache
from fairlead_operator.reconcile.topic_finalizer import take_off
from fairlead_operator.telemetry import Log

ATTEMPTS_MAX: Final = 5
"""Attempts to write a resource that another writer changes at the same time."""
LAST_SECONDS: Final = 10.0
"""For the last calls of an operator that is stopped, well within the time that its pod has."""


class NamespaceEnd:
    """Tells whether namespaces end, and takes our finalizer off what ends with them."""

    def __init__(self, api: KubernetesApi, cache: ObjectCache) -> None:
        self._api = api
        self._cache = cache

    def holds_topics(self, namespace: str) -> bool:
        """Return whether a known Topic in the namespace has the operator's finalizer."""
        return any(
            TOPIC_FINALIZER in (manifest["metadata"].get("finalizers") or [])
            for manifest in self._cache.all(TOPIC, namespace)
        )

    async def has_begun(self, namespace: str) -> bool:
        """Return whether the namespace is being deleted, which cannot be cancelled, or is gone."""
        try:
            found = await self._api.get(ObjectRef(NAMESPACE, "", namespace))
        except Forbidden:
            # Without the right to look, the namespace counts as staying.
            return False
        return found is None or found["metadata"].get("deletionTimestamp") is not None

    async def let_go(self, namespace: str, *, all_topics: bool = False) -> bool:
        """Remove the finalizer from Topics of an ending namespace whose Cluster ends with it; return whether it ends.

        Topics of Clusters elsewhere have their topics deleted first, unless (`all_topics`) the operator itself ends.
        """
        if not await self.has_begun(namespace):
            return False
        for manifest in self._cache.all(TOPIC, namespace):
            claimed = claimed_by(manifest)
            if all_topics or claimed is None or claimed.cluster_namespace == namespace:
                await self._release(manifest)
        return True

    async def _release(self, manifest: Manifest) -> None:
        """Raises `ApiError`; a resource that changes all the time is left to the pass that comes after."""
        metadata = manifest["metadata"]
        ref, live = ObjectRef(TOPIC, metadata["namespace"], metadata["name"]), manifest
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
    """Let the Topics of the operator's own namespace go where that is why it is stopped. Never raises."""
    if not end.holds_topics(own_namespace):
        # Nor is anything asked of a namespace that is not watched: there may be no right to.
        return
    try:
        async with asyncio.timeout(LAST_SECONDS):
            if await end.let_go(own_namespace, all_topics=True):
                log.info("Topics released", namespace=own_namespace)
    except (ApiError, TimeoutError) as error:
        log.warning("Topics not released", namespace=own_namespace, error=str(error))
