"""A namespace that ends: its Topics are let go while the operator may still write there.

Whoever deletes a namespace deletes the operator's roles in it, and perhaps the operator. Kubernetes ends the pods of a
namespace before everything else in it, so pods that go are the sign to look, and the time until they are gone is the
time to act: afterwards a finalizer of ours would hold the namespace for ever. Asked by `cluster` when pods go, by
`topic` before it puts a finalizer on and when a Topic goes, and by `wiring` when the operator itself is stopped.
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
"""How often a resource is tried that somebody else writes at the same time."""
LAST_SECONDS: Final = 10.0
"""For the last calls of an operator that is stopped, well within the time that its pod has."""


class NamespaceEnd:
    """Tells whether namespaces end, and takes our finalizer off what ends with them."""

    def __init__(self, api: KubernetesApi, cache: ObjectCache) -> None:
        self._api = api
        self._cache = cache

    def holds_topics(self, namespace: str) -> bool:
        """Say whether a Topic that was seen in the namespace has our finalizer."""
        return any(
            TOPIC_FINALIZER in (manifest["metadata"].get("finalizers") or [])
            for manifest in self._cache.all(TOPIC, namespace)
        )

    async def has_begun(self, namespace: str) -> bool:
        """Say whether the namespace is being deleted, which nobody can call off, or is gone."""
        try:
            found = await self._api.get(ObjectRef(NAMESPACE, "", namespace))
        except Forbidden:
            # Without the right to look, the namespace counts as staying.
            return False
        return found is None or found["metadata"].get("deletionTimestamp") is not None

    async def let_go(self, namespace: str, *, all_topics: bool = False) -> bool:
        """Take our finalizer off the Topics of an ending namespace whose Cluster ends with it; whether it ends.

        Those of Clusters elsewhere have their topics deleted first, unless (`all_topics`) nobody will be there for it.
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
