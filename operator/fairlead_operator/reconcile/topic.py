"""Reconciles a Topic: changes the topic to match its resource, and reports remaining differences in the status.

The work queue calls the reconciler with the key of a Topic. The resource is the source of truth, and topics without a
resource are not changed. `plan` makes the decisions, and this module executes the actions in an order that is safe if
the operator crashes at any step: the finalizer is added before the topic is created, and a topic whose id was not
stored in the status is found by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import find_condition
from fairlead_api.resources.resource import InvalidResource
from fairlead_api.resources.topic import Topic, TopicStatus
from fairlead_operator.brokers.calls import BrokersUnavailable
from fairlead_operator.brokers.topics import TopicCalls, TopicChanged, TopicRefused
from fairlead_operator.clock import Clock
from fairlead_operator.naming import CLUSTER, TOPIC, TOPIC_FINALIZER, Manifest, ObjectRef
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.observed import is_paused
from fairlead_operator.plan.topic import (
    AlterConfig,
    CreateTopic,
    GrowPartitions,
    TopicAction,
    TopicPlan,
    plan_topic,
    refused,
)
from fairlead_operator.plan.topic_admission import (
    ClaimedTopic,
    claims_of,
    conflict,
    desired_brokers,
    refusal,
)
from fairlead_operator.plan.topic_claims import winner
from fairlead_operator.plan.topic_observed import LiveTopic, LiveTopics, WantedTopic
from fairlead_operator.plan.topic_status import Outcome, interrupted_status, topic_status, unreadable_status
from fairlead_operator.ports import Conflict, Key, KubernetesApi, NotFound, ObjectCache
from fairlead_operator.reconcile.finalizers import take_off
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.namespace_end import NamespaceEnd
from fairlead_operator.reconcile.topic_deletion import News, TopicDeletion, status_manifest

ROUNDS_MAX: Final = 4
"""Maximum number of rounds in a pass; after its own change or a conflicting change, the pass lists the topics and plans
again."""
MOVING_SECONDS: Final = 3.0
"""Interval at which the progress of moves is checked."""
WAIT_SECONDS_MIN: Final = 2.0
WAIT_SECONDS_MAX: Final = 60.0
"""Limits of the pause before unresponsive brokers are called again. The pause equals the time since the brokers stopped
answering.
"""
OTHERS_SECONDS: Final = 15.0
"""Interval between passes while a Topic waits for more brokers, or for the promotion of a mirror."""
NO_ANSWER: Final = "the cluster did not carry out the request: "
QUIET: Final = frozenset({"ClusterNotFound", "ClusterNotReady"})
"""Reasons that are not reported by an Event: the Cluster has its own Events, and a namespace being deleted accepts
none.
"""
CONFLICT_SECONDS: Final = 0.5
"""Pause after a conflict with another writer of the resource, during which the watch reports the other writer's
change."""


@dataclass(slots=True)
class _Pass:
    """Changes that one pass made to a topic, and refusals by the brokers."""

    done: list[TopicAction] = field(default_factory=list)
    refusals: list[Finding] = field(default_factory=list)
    plan: TopicPlan = field(default_factory=TopicPlan)
    live: LiveTopic | None = None


class TopicReconciler:
    """Implements `ports.Reconciler` for Topics."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        topics: TopicCalls,
        clock: Clock,
        rights: LastingRights,
    ) -> None:
        self._api = api
        self._cache = cache
        self._topics = topics
        self._clock = clock
        self._rights = rights
        self._end = NamespaceEnd(api, cache)
        self._deletion = TopicDeletion(api, cache, topics, clock)

    async def reconcile(self, key: Key) -> float | None:
        """See `ports.Reconciler`."""
        try:
            pause = await self._pass(key)
            await self._rights.settle(key.namespace)
        except Conflict:
            return CONFLICT_SECONDS
        return pause

    async def _pass(self, key: Key) -> float | None:
        manifest = self._cache.get(ObjectRef(TOPIC, key.namespace, key.name))
        if manifest is None:
            return None
        try:
            topic = Topic.parse(manifest)
        except InvalidResource as error:
            await self._report_unreadable(manifest, error)
            return None
        if topic.metadata.deletion_timestamp is not None:
            return await self._deletion.reconcile(topic, manifest)
        return await self._reconcile(topic, manifest)

    async def _reconcile(self, topic: Topic, manifest: Manifest) -> float | None:
        if is_paused(manifest):
            paused = Finding("Annotation", "the annotation fairlead.dev/paused is set on this Topic")
            await self._interrupt(topic, manifest, ConditionName.RECONCILIATION_PAUSED, paused)
            return None
        reference = ObjectRef(CLUSTER, topic.cluster_namespace, topic.spec.cluster_ref.name)
        cluster = self._cache.get(reference)
        finding = refusal(topic, cluster)
        if finding is not None or cluster is None:
            assert finding is not None, f"no finding for the missing {reference}"
            if cluster is None:
                self._topics.forget(reference.namespace, reference.name)
            await self._hold(topic, manifest, wanted=False)
            await self._report(topic, manifest, Outcome(findings=(finding,)))
            return None
        if is_paused(cluster):
            paused = Finding("ClusterPaused", f"{reference} is paused")
            await self._interrupt(topic, manifest, ConditionName.READY, paused)
            return None
        claimed = ClaimedTopic(reference.namespace, reference.name, topic.topic_name)
        finding = conflict(topic, winner(claims_of(claimed, self._cache.all(TOPIC), cluster)))
        if finding is not None:
            await self._hold(topic, manifest, wanted=False)
            await self._report(topic, manifest, Outcome(findings=(finding,), has_topic=False))
            return None
        if not await self._hold(topic, manifest, wanted=topic.spec.deletion_policy == "Delete"):
            return None
        return await self._bring_in_line(topic, manifest, cluster)

    async def _bring_in_line(self, topic: Topic, manifest: Manifest, cluster: Manifest) -> float | None:
        made = _Pass()
        findings: tuple[Finding, ...] = ()
        try:
            await self._work(topic, cluster, made)
        except BrokersUnavailable as error:
            findings = (_unavailable(topic, str(error)),)
        findings = findings or (*made.refusals, *made.plan.findings)
        outcome = Outcome(
            findings=findings, warnings=made.plan.warnings, progress=made.plan.progress, live=made.live
        )
        await self._write_events(topic, manifest, made, outcome)
        await self._report(topic, manifest, outcome)
        reasons = {each.reason for each in findings}
        if "ClusterNotReady" in reasons:
            return _patience(topic, self._clock.now())
        if reasons & {"ReplicationFactorTooLarge", "OwnedByLink"}:
            return OTHERS_SECONDS
        return MOVING_SECONDS if made.plan.progress is not None else None

    async def _work(self, topic: Topic, cluster: Manifest, made: _Pass) -> None:
        """Change the topic until the plan has no more actions or an action is refused."""
        wanted, fresh = _wanted(topic), False
        for _ in range(ROUNDS_MAX):
            live = await self._topics_as_known(topic, cluster, fresh=fresh)
            made.live = live.topics.get(topic.topic_name)
            made.plan = plan_topic(wanted, live, desired_brokers(cluster))
            if made.refusals or not made.plan.actions:
                return
            fresh = not await self._run(topic, cluster, made)
        reason = f"other clients are changing topic {topic.topic_name} at the same time"
        raise BrokersUnavailable(reason)

    async def _topics_as_known(self, topic: Topic, cluster: Manifest, *, fresh: bool) -> LiveTopics:
        live = await self._topics.topics(cluster, fresh=fresh)
        if topic.status.topic_id is not None and topic.topic_name not in live.topics and not fresh:
            # If a topic that existed is missing from the listing, topics are listed again before an empty topic is
            # created.
            return await self._topics.topics(cluster, fresh=True)
        return live

    async def _run(self, topic: Topic, cluster: Manifest, made: _Pass) -> bool:
        """Run the plan's actions, even after a refused action. Return False if the topic must be listed again."""
        topic_id = made.live.topic_id if made.live is not None else None
        for action in made.plan.actions:
            try:
                await self._topics.run(cluster, topic.topic_name, topic_id, action)
            except TopicRefused as error:
                made.refusals.append(refused(error.code, error.key, str(error)))
            except TopicChanged:
                return False
            else:
                made.done.append(action)
        return True

    async def _hold(self, topic: Topic, manifest: Manifest, *, wanted: bool) -> bool:
        """Add or remove the operator's finalizer; return False if the resource is deleted or being deleted."""
        has = TOPIC_FINALIZER in topic.metadata.finalizers
        if has == wanted:
            return True
        if not wanted:
            return await take_off(self._api, manifest)
        seen_before = topic.status.topic_name is not None
        if seen_before and await self._end.has_begun(topic.namespace):
            # The Topic was released just now, and the operator will soon lose its permissions in the namespace.
            return False
        await self._rights.hold(topic.namespace)
        patch: Manifest = {"metadata": {"finalizers": [*topic.metadata.finalizers, TOPIC_FINALIZER]}}
        version = manifest["metadata"]["resourceVersion"]
        try:
            await self._api.patch(
                ObjectRef(TOPIC, topic.namespace, topic.name), patch, resource_version=version
            )
        except NotFound:
            return False
        return True

    async def _interrupt(
        self, topic: Topic, manifest: Manifest, name: ConditionName, finding: Finding
    ) -> None:
        await self._write(topic, manifest, interrupted_status(topic, name, finding, self._clock.now()))

    async def _report(self, topic: Topic, manifest: Manifest, outcome: Outcome) -> None:
        before = find_condition(topic.status.conditions, ConditionName.READY)
        status = topic_status(topic, outcome, self._clock.now())
        await self._write(topic, manifest, status)
        finding = outcome.findings[0] if outcome.findings else None
        if finding is None or finding.reason in QUIET or (before and before.reason == finding.reason):
            return
        await self._api.event(manifest, "Warning", finding.reason, finding.message)

    async def _write(self, topic: Topic, manifest: Manifest, status: TopicStatus) -> None:
        with contextlib.suppress(NotFound):
            await self._api.apply_status_if_changed(status_manifest(topic, status), manifest)

    async def _report_unreadable(self, manifest: Manifest, error: InvalidResource) -> None:
        """Report an invalid resource in its status; remove the finalizer if the resource is being deleted."""
        metadata = manifest["metadata"]
        ref = ObjectRef(TOPIC, metadata["namespace"], metadata["name"])
        if metadata.get("deletionTimestamp") is not None:
            await take_off(self._api, manifest)
            return
        try:
            before = TopicStatus.model_validate(manifest.get("status") or {})
        except ValueError:
            before = TopicStatus()
        status = unreadable_status(before, metadata.get("generation", 0), str(error), self._clock.now())
        reported: Manifest = {
            "apiVersion": TOPIC.api_version,
            "kind": TOPIC.kind,
            "metadata": {"namespace": ref.namespace, "name": ref.name},
            "status": status.manifest(),
        }
        await self._api.apply_status_if_changed(reported, manifest)

    async def _write_events(self, topic: Topic, manifest: Manifest, made: _Pass, outcome: Outcome) -> None:
        for type_, reason, message in _news(topic, made, outcome):
            await self._api.event(manifest, type_, reason, message)


def _wanted(topic: Topic) -> WantedTopic:
    return WantedTopic(
        name=topic.topic_name,
        partitions=topic.spec.partitions,
        replicas=topic.spec.replicas,
        config=topic.spec.config,
        unmanaged=frozenset(topic.spec.unmanaged_config),
    )


def _unavailable(topic: Topic, why: str) -> Finding:
    """Return the finding from the first of consecutive failures, so that a new message does not change the status."""
    reported = find_condition(topic.status.conditions, ConditionName.READY)
    if (
        reported is not None
        and reported.reason == "ClusterNotReady"
        and reported.message.startswith(NO_ANSWER)
    ):
        return Finding(reported.reason, reported.message)
    return Finding("ClusterNotReady", NO_ANSWER + why)


def _patience(topic: Topic, now: datetime) -> float:
    """Return a pause that equals the time without an answer: short at first, long if the failure persists."""
    ready = find_condition(topic.status.conditions, ConditionName.READY)
    if ready is None or ready.reason != "ClusterNotReady":
        return WAIT_SECONDS_MIN
    waited = (now - datetime.fromisoformat(ready.last_transition_time)).total_seconds()
    return min(max(waited, WAIT_SECONDS_MIN), WAIT_SECONDS_MAX)


def _news(topic: Topic, made: _Pass, outcome: Outcome) -> Sequence[News]:
    """Return the Events about the changes of a pass."""
    name, held, live = topic.topic_name, topic.status.topic_id, outcome.live
    news: list[News] = []
    created = any(isinstance(each, CreateTopic) for each in made.done)
    if live is not None and held is None:
        verb = (
            ("TopicCreated", "is created") if created else ("TopicAdopted", "already existed and was adopted")
        )
        news.append(("Normal", verb[0], f"topic {name} {verb[1]}; its id is {live.topic_id}"))
    elif live is not None and live.topic_id != held:
        then = "is created again, empty," if created else "was created again by another client and is adopted"
        message = f"topic {name} was deleted outside this resource (id {held}) and {then} as {live.topic_id}"
        news.append(("Warning", "TopicRecreated", message))
    for action in made.done:
        if isinstance(action, AlterConfig):
            keys = ", ".join(
                f"{key}={'default' if value is None else value}" for key, value in action.changes.items()
            )
            news.append(("Normal", "ConfigChanged", f"configuration of topic {name} is set: {keys}"))
        elif isinstance(action, GrowPartitions):
            news.append(("Normal", "PartitionsAdded", f"topic {name} has {action.partitions} partitions now"))
    moving, moved = outcome.progress is not None, topic.status.reassignment is not None
    if moving and not moved:
        message = f"topic {name} is moving to {topic.spec.replicas} replicas of each partition"
        news.append(("Normal", "ReassignmentStarted", message))
    elif moved and not moving and not outcome.findings:
        message = f"topic {name} has {topic.spec.replicas} replicas of each partition"
        news.append(("Normal", "ReassignmentFinished", message))
    return news
