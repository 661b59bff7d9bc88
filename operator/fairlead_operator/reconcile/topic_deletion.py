"""Deletion of a Topic: deletes or keeps the topic, and always releases the resource.

`topic` calls this module for resources that are being deleted and still have the operator's finalizer. A topic is
deleted only if the resource owns the topic under its current id and no other Topic claims the topic. If the Cluster or
the namespace is being deleted, the resource is released without delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.topic import Topic
from fairlead_operator.brokers.calls import BrokersUnavailable
from fairlead_operator.brokers.topics import Deletion, TopicCalls, TopicRefused
from fairlead_operator.clock import Clock
from fairlead_operator.naming import CLUSTER, TOPIC, TOPIC_FINALIZER, Manifest, ObjectRef
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.topic_admission import ClaimedTopic, claims_of, is_leaving, may_use
from fairlead_operator.plan.topic_claims import winner
from fairlead_operator.plan.topic_status import interrupted_status
from fairlead_operator.ports import EventType, Forbidden, KubernetesApi, ObjectCache
from fairlead_operator.reconcile.finalizers import take_off
from fairlead_operator.reconcile.namespace_end import NamespaceEnd

if TYPE_CHECKING:
    from fairlead_api.resources.topic import TopicStatus

News: TypeAlias = tuple[EventType, str, str]
"""Type, reason and message of an Event."""

RETRY_SECONDS: Final = 5.0
"""Pause before unresponsive brokers are called again."""
REFUSED_RETRY_SECONDS: Final = 60.0


class TopicDeletion:
    """Deletes topics if the deletion is allowed, and releases their resources."""

    def __init__(self, api: KubernetesApi, cache: ObjectCache, topics: TopicCalls, clock: Clock) -> None:
        self._api = api
        self._cache = cache
        self._topics = topics
        self._clock = clock
        self._end = NamespaceEnd(api, cache)

    async def reconcile(self, topic: Topic, manifest: Manifest) -> float | None:
        """Make one pass over a Topic being deleted; return the seconds until the next pass, or None."""
        if TOPIC_FINALIZER not in topic.metadata.finalizers:
            return None
        # The cached resource may be outdated: a user may have just changed the deletion policy to keep the topic.
        live = await self._api.get(ObjectRef(TOPIC, topic.namespace, topic.name))
        if live is None or live["metadata"]["uid"] != topic.metadata.uid:
            return None
        topic, manifest = Topic.parse(live), live
        cluster = await self._cluster(
            ObjectRef(CLUSTER, topic.cluster_namespace, topic.spec.cluster_ref.name)
        )
        ending = await self._end.has_begun(topic.namespace)
        if cluster is None or is_leaving(cluster) or (ending and topic.cluster_namespace == topic.namespace):
            await self.release(topic)
            return None
        try:
            event = await self._delete(topic, cluster)
        except BrokersUnavailable as error:
            if ending:
                await self.release(topic)
                return None
            return await self._wait(topic, manifest, f"the topic is not deleted yet: {error}", RETRY_SECONDS)
        except TopicRefused as error:
            return await self._wait(topic, manifest, str(error), REFUSED_RETRY_SECONDS)
        if not ending:
            # The API server accepts no new Events in a namespace that is being deleted.
            await self._api.event(manifest, *event)
        await self.release(topic)
        return None

    async def _cluster(self, ref: ObjectRef) -> Manifest | None:
        """Return the live Cluster; None if the Cluster, or its whole namespace, was deleted."""
        try:
            return await self._api.get(ref)
        except Forbidden:
            # If the operator has no permission to read the Cluster, the cache decides: unreadable objects are dropped
            # from the cache.
            if self._cache.get(ref) is not None:
                raise
            return None

    async def release(self, topic: Topic) -> None:
        """Remove the operator's finalizer from the live resource."""
        ref = ObjectRef(TOPIC, topic.namespace, topic.name)
        live = await self._api.get(ref)
        if live is None or live["metadata"]["uid"] != topic.metadata.uid:
            return
        await take_off(self._api, live)

    async def _delete(self, topic: Topic, cluster: Manifest) -> News:
        """Delete the topic if the deletion is allowed; return the Event about the result."""
        name, held = topic.topic_name, topic.status.topic_id
        if topic.spec.deletion_policy != "Delete" or held is None or not may_use(cluster, topic.namespace):
            return "Normal", "TopicKept", f"topic {name} is kept: this resource may not delete it"
        claimed = ClaimedTopic(topic.cluster_namespace, topic.spec.cluster_ref.name, name)
        heir = winner(claims_of(claimed, self._cache.all(TOPIC), cluster, but=topic.metadata.uid))
        if heir is not None:
            return (
                "Normal",
                "TopicHandedOver",
                f"topic {name} is kept with its data: Topic {heir} takes it over",
            )
        match await self._topics.delete(cluster, name, held):
            case Deletion.DELETED:
                return "Normal", "TopicDeleted", f"topic {name} is deleted with its data"
            case Deletion.ABSENT:
                return "Normal", "TopicDeleted", f"topic {name} was deleted already"
            case Deletion.ANOTHER:
                message = (
                    f"topic {name} is kept: another client created it again, so its id is no longer {held}"
                )
                return "Warning", "TopicKept", message

    async def _wait(self, topic: Topic, manifest: Manifest, why: str, seconds: float) -> float:
        finding = Finding("Deleting", why)
        status = interrupted_status(topic, ConditionName.READY, finding, self._clock.now())
        await self._api.apply_status_if_changed(status_manifest(topic, status), manifest)
        return seconds


def status_manifest(topic: Topic, status: TopicStatus) -> Manifest:
    """Return the status of a Topic as a manifest that can be applied."""
    return {
        "apiVersion": TOPIC.api_version,
        "kind": TOPIC.kind,
        "metadata": {"namespace": topic.namespace, "name": topic.name},
        "status": status.manifest(),
    }
