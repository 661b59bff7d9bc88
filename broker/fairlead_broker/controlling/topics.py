"""Creation, change and deletion of topics at the request of users, and refusals with reasons.

The runtime calls this module. The module compares a request with the stored records, gets a plan from
`controller`, and runs the plan. Several callers, even on different brokers, may send the same request at the same
time: a guard lets only one write succeed, and the other callers find the operation complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.configuration import CLUSTER_KEYS, merge_patch
from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId, check_topic_name, collides
from fairlead_api.patterns import matches
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_api.quota_limits import TOPICS
from fairlead_broker.clock import Clock
from fairlead_broker.controller.topics import (
    Planning,
    placeable,
    plan_alteration,
    plan_creation,
    plan_deletion,
    plan_placement,
)
from fairlead_broker.controlling.feature_level import check_compaction
from fairlead_broker.controlling.operation_refusals import bad_replicas, too_many_partitions
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.controlling.quorum_settings import check_quorum, check_unchanged, fixed_at_creation
from fairlead_broker.controlling.replica_load import Promise, ReplicaLoad
from fairlead_broker.controlling.topic_completion import HeldTerm, TopicCompletion, is_unfinished
from fairlead_broker.coordination.cluster_values import cordoned_brokers
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.quotas.limits import partition_quotas
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import (
    ConfigScalar,
    Era,
    MirrorOf,
    TopicRecord,
    TopicState,
    config_texts,
)
from fairlead_broker.registry.store_writes import Transaction

REPLICATION_FACTOR_DEFAULT_MAX = 3
MIN_ISR = "min.insync.replicas"


class TopicAdmin:
    """Operations on topics, run on the broker that holds the controller's term.

    Every call may raise `ProblemError`. `coordination_unavailable` is also raised if the term is lost.
    """

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        term: HeldTerm,
        clock: Clock,
        load: ReplicaLoad,
        *,
        new_topic_id: Callable[[], TopicId],
        new_start_index: Callable[[], int] = lambda: 0,
    ) -> None:
        """`new_topic_id` returns a UUID; `new_start_index` returns the index at which placement of a topic begins."""
        self._mirror = mirror
        self._metadata = mirror.metadata
        self._clock = clock
        self._term = term
        self._runner = PlanRunner(coordination, mirror)
        self._load = load
        self._completing = TopicCompletion(coordination, mirror, term, clock, load, new_start_index)
        self._new_topic_id = new_topic_id
        self._new_start_index = new_start_index

    async def create(self, request: CreateTopicRequest, *, dry_run: bool = False) -> tuple[TopicRecord, bool]:
        """Create a topic. Returns the topic, and whether this call created it.

        An existing topic is returned if it has the same specification. If the existing topic differs, `topic_exists` is
        raised with the differences. A dry run checks the request and writes nothing.
        """
        check_topic_name(request.name)
        request = _with_counts(request)
        config = fixed_at_creation(self._metadata, merge_patch({}, request.config))
        check_compaction(self._metadata, config)
        existing = self._live(request.name)
        if existing is not None and dry_run:
            _check_same(request, config, existing.value)
            return existing.value, False
        if dry_run:
            record = self._new_topic(request, config)
            # Only the controller knows the replicas of operations in progress, so the controller checks the topic
            # again.
            if self._term() is not None:
                self._placed(request.name, record, self._new_start_index())
            return record, True
        offered: set[TopicId] = set()
        with self._load.promise(request.name) as promise:
            await self._runner.complete(self._creation(request, config, offered, promise))
        made = self._required(request.name, None).value
        return made, made.topic_id in offered

    async def create_mirror(
        self, request: CreateTopicRequest, topic_id: TopicId, mirror: MirrorOf, eras: tuple[Era, ...]
    ) -> TopicRecord:
        """Create the mirror of a topic with the topic's own id. An existing topic with this id is returned.

        Raises `topic_exists` if another topic has the name, and the refusals of `create`.
        """

        def as_mirror(record: TopicRecord) -> TopicRecord:
            return msgspec.structs.replace(record, topic_id=topic_id, mirror=mirror, eras=eras or None)

        config = merge_patch({}, request.config)
        with self._load.promise(request.name) as promise:
            offered: set[TopicId] = {topic_id}
            await self._runner.complete(self._creation(request, config, offered, promise, as_mirror))
        return self._required(request.name, topic_id).value

    async def alter(
        self, name: str, request: AlterTopicRequest, topic_id: TopicId | None = None
    ) -> TopicRecord:
        """Change a topic: its configuration (merge patch), replication factor (of new partitions) and partition count.

        Raises `topic_recreated` if a topic id is given and the topic with this name has a different id.
        """
        altered = self._required(name, topic_id).value.topic_id
        start_index = self._new_start_index()

        def completion(size: int) -> Sequence[Transaction]:
            return self._completing.completion(name, self._required(name, altered), size, start_index)

        def announcement(size: int) -> Sequence[Transaction]:
            topic = self._required(name, altered)
            if is_unfinished(topic.value):
                return ()
            planning = self._completing.planning(altered, size, start_index)
            return self._alteration(name, topic, request, planning, promise)

        with self._load.promise(name) as promise:
            while True:
                # Operations that other brokers have begun are completed first, including operations that begin in the
                # meantime.
                await self._runner.complete(completion)
                self._refuse_unfinished(name, altered)
                if await self._runner.begin(announcement) or not is_unfinished(
                    self._required(name, altered).value
                ):
                    break
            await self._runner.complete(completion)
        return self._required(name, altered).value

    async def follow_cluster_config(self) -> None:
        """Apply the cluster's configuration to the partitions of every topic, if this broker is the controller."""
        if self._term() is not None:
            for name in tuple(self._metadata.topics):
                await self._completing.finish(name)

    async def delete(self, name: str, topic_id: TopicId | None = None) -> None:
        """Delete a topic, and return when its name can be used again. Raises `topic_recreated` like `alter`."""
        doomed = self._required(name, topic_id).value.topic_id

        def plan(size: int) -> Sequence[Transaction]:
            now = self._metadata.topics.get(name)
            if now is None or now.value.topic_id != doomed:
                return ()
            planning = self._completing.planning(doomed, size)
            return plan_deletion(planning, name, now, self._metadata.partitions(doomed))

        await self._runner.complete(plan)

    def _alteration(
        self,
        name: str,
        topic: Versioned[TopicRecord],
        request: AlterTopicRequest,
        planning: Planning,
        promise: Promise,
    ) -> Sequence[Transaction]:
        partition_count = request.partitions or topic.value.partitions
        if partition_count < topic.value.partitions:
            raise _shrinks(name, topic.value.partitions, partition_count)
        if partition_count > topic.value.partitions:
            self._check_quotas(name, partition_count)
            promise.partitions = partition_count
        before = config_texts(topic.value.config)
        config = merge_patch(before, request.config)
        check_compaction(self._metadata, config)
        replication_factor = request.replication_factor or topic.value.replication_factor
        check_unchanged(name, before, config)
        check_quorum(name, config, replication_factor)
        if request.config is None or MIN_ISR in request.config or request.replication_factor is not None:
            _check_min_isr(name, config, replication_factor)
        self._check_placeable(name, topic.value, replication_factor)
        assigned = self._assigned(
            request.replicas, topic.value.partitions, partition_count, replication_factor
        )
        grown = msgspec.structs.replace(
            topic.value,
            growing_to=partition_count,
            assigned=assigned,
            replication_factor=replication_factor,
        )
        promise.renew(topic.value.topic_id, self._placed(name, grown, planning.start_index))
        return plan_alteration(
            planning,
            name,
            topic,
            self._metadata.partitions(topic.value.topic_id),
            partition_count=partition_count,
            config=config,
            replication_factor=replication_factor,
            assigned=assigned,
        )

    def _assigned(
        self,
        replicas: Sequence[Sequence[int]] | None,
        first: int,
        partition_count: int,
        replication_factor: int,
    ) -> dict[PartitionIndex, tuple[BrokerId, ...]] | None:
        """Return the brokers that a request names for the partitions from `first` on; None if it names none."""
        if replicas is None:
            return None
        if len(replicas) != partition_count - first:
            raise ProblemError(
                "invalid_config",
                f"the request names the replicas of {len(replicas)} new partitions; expected "
                f"{partition_count - first}",
                data={"key": "replicas", "value": len(replicas), "allowed": str(partition_count - first)},
            )
        takers = {each.broker for each in placeable(self._metadata.brokers, cordoned_brokers(self._metadata))}
        assigned = {}
        for number, named in enumerate(replicas, start=first):
            brokers = tuple(map(BrokerId, named))
            if len(set(brokers)) != replication_factor or len(brokers) != replication_factor:
                raise bad_replicas(brokers, "has another number of brokers", f"{replication_factor} brokers")
            if not takers.issuperset(brokers):
                allowed = ", ".join(map(str, sorted(takers)))
                raise bad_replicas(brokers, "names a broker that takes no new replicas", allowed)
            assigned[PartitionIndex(number)] = brokers
        return assigned

    def _check_placeable(self, name: str, topic: TopicRecord, replication_factor: int) -> None:
        """Refuse an increased replication factor that exceeds the number of brokers that can get new replicas."""
        broker_count = len(placeable(self._metadata.brokers, cordoned_brokers(self._metadata)))
        if replication_factor > max(topic.replication_factor, broker_count):
            raise _too_few_brokers(name, replication_factor, broker_count)

    def _creation(
        self,
        request: CreateTopicRequest,
        config: dict[str, str],
        offered: set[TopicId],
        promise: Promise,
        completed: Callable[[TopicRecord], TopicRecord] = lambda record: record,
    ) -> Callable[[int], Sequence[Transaction]]:
        """Return a plan that creates the topic, even if a topic of this name is being created or deleted.

        `offered` collects the topic ids under which this call has tried to create the topic. `completed` changes the
        record of the new topic.
        """
        start_index = self._new_start_index()
        record: TopicRecord | None = None

        def plan(size: int) -> Sequence[Transaction]:
            nonlocal record
            now = self._metadata.topics.get(request.name)
            if now is not None:
                if now.value.state is not TopicState.DELETING and now.value.topic_id not in offered:
                    _check_same(request, config, now.value)
                return self._completing.completion(request.name, now, size, start_index)
            if offered.intersection(self._metadata.deleted_topics):
                detail = f"topic {request.name} was created and immediately deleted"
                raise ProblemError("conflict", detail, side_effect=SideEffect.MAYBE)
            if record is None:
                record = completed(self._new_topic(request, config))
                promise.partitions = record.partitions
                offered.add(record.topic_id)
            promise.renew(record.topic_id, self._placed(request.name, record, start_index))
            planning = self._completing.planning(record.topic_id, size, start_index)
            return plan_creation(planning, request.name, record)

        return plan

    def _placed(
        self, name: str, record: TopicRecord, start_index: int
    ) -> Mapping[PartitionKey, Sequence[BrokerId]]:
        """Return the replicas of the topic's new partitions, and refuse partitions beyond the brokers' maximum.

        The result is empty while the topic waits for brokers.
        """
        planning = self._completing.planning(record.topic_id, start_index=start_index)
        brokers = planning.placeable
        if record.replication_factor > len(brokers):
            return {}
        placement = plan_placement(planning, record, self._metadata.partitions(record.topic_id))
        if placement is None:
            chosen = {broker for each in (record.assigned or {}).values() for broker in each}
            candidates = [each.broker for each in brokers if each.broker in chosen or not chosen]
            raise too_many_partitions(name, candidates, planning.brokers, planning.load)
        return {PartitionKey(record.topic_id, index): replicas for index, replicas in placement.items()}

    def _check_quotas(self, name: str, partition_count: int) -> None:
        """Raise `conflict` if a topic with this number of partitions exceeds a quota (rule Q2)."""
        limited = partition_quotas(self._metadata.quotas, name)
        if not limited:
            return
        counts = self._load.promised_partitions()
        for topic, found in self._metadata.topics.items():
            if found.value.state is not TopicState.DELETING:
                known = found.value.growing_to or found.value.partitions
                counts[topic] = max(known, counts.get(topic, 0))
        counts[name] = partition_count
        for subject, limit in limited:
            pattern = subject.removeprefix(TOPICS)
            wanted = sum(count for topic, count in counts.items() if matches(pattern, topic))
            if wanted > limit:
                raise ProblemError(
                    "conflict",
                    f"the topics {pattern} would have {wanted} partitions; their quota {subject} allows {limit}",
                    data={"subject": subject, "limit": limit, "partitions": wanted},
                )

    def _new_topic(self, request: CreateTopicRequest, config: dict[str, str]) -> TopicRecord:
        self._check_twins(request.name)
        broker_count = len(placeable(self._metadata.brokers, cordoned_brokers(self._metadata)))
        replication_factor = request.replication_factor or self._default_replication_factor(broker_count)
        if broker_count == 0:
            raise ProblemError(
                "not_enough_replicas",
                f"none of the {len(self._metadata.brokers)} registered brokers takes new replicas: each is cordoned, "
                "or has no healthy data directory",
            )
        if replication_factor > broker_count:
            raise _too_few_brokers(request.name, replication_factor, broker_count)
        _check_min_isr(request.name, config, replication_factor)
        check_quorum(request.name, config, replication_factor)
        partition_count = request.partitions or self._default_partitions()
        self._check_quotas(request.name, partition_count)
        return TopicRecord(
            topic_id=self._new_topic_id(),
            state=TopicState.CREATING,
            partitions=partition_count,
            assigned=self._assigned(request.replicas, 0, partition_count, replication_factor),
            replication_factor=replication_factor,
            config={**config},
            created_us=self._clock.now_us(),
        )

    def _default_partitions(self) -> int:
        configured = self._configured("num.partitions")
        return int(CLUSTER_KEYS["num.partitions"].default or 1) if configured is None else int(configured)

    def _default_replication_factor(self, broker_count: int) -> int:
        configured = self._configured("default.replication.factor")
        if configured is not None:
            return int(configured)
        return max(1, min(REPLICATION_FACTOR_DEFAULT_MAX, broker_count))

    def _configured(self, name: str) -> ConfigScalar | None:
        config = self._metadata.cluster_config
        return None if config is None else config.value.values.get(name)

    def _check_twins(self, name: str) -> None:
        for other in (*self._metadata.topics, *self._load.promised_partitions()):
            if collides(name, other):
                raise ProblemError(
                    "invalid_topic_name",
                    f"topics {name} and {other} would have the same metric name ('.' and '_' count as equal there)",
                    data={"topic": name},
                )

    def _refuse_unfinished(self, name: str, topic_id: TopicId) -> None:
        if is_unfinished(self._required(name, topic_id).value):
            detail = f"topic {name} waits for brokers on which its new partitions can be placed"
            raise ProblemError("conflict", detail)

    def _live(self, name: str) -> Versioned[TopicRecord] | None:
        topic = self._metadata.topics.get(name)
        return None if topic is None or topic.value.state is TopicState.DELETING else topic

    def _required(self, name: str, topic_id: TopicId | None) -> Versioned[TopicRecord]:
        topic = self._live(name)
        if topic is None:
            raise ProblemError("topic_not_found", f"there is no topic {name}", data={"topic": name})
        if topic_id is not None and topic.value.topic_id != topic_id:
            raise ProblemError(
                "topic_recreated",
                f"topic {name} has id {topic.value.topic_id} now, not {topic_id}",
                data={"topic": name, "expected": topic_id, "actual": topic.value.topic_id},
            )
        return topic


def _with_counts(request: CreateTopicRequest) -> CreateTopicRequest:
    """Return a request whose numbers of partitions and replicas default to those of the named replicas."""
    if request.replicas is None:
        return request
    return msgspec.structs.replace(
        request,
        partitions=request.partitions or len(request.replicas),
        replication_factor=request.replication_factor or len(request.replicas[0]),
    )


def _check_same(request: CreateTopicRequest, config: dict[str, str], existing: TopicRecord) -> None:
    """Raise `topic_exists` with every difference between the request and the existing topic."""
    wanted_factor = request.replication_factor or existing.replication_factor
    partitions = existing.growing_to or existing.partitions
    pairs: list[tuple[str, object, object]] = [
        ("partitions", partitions, request.partitions or partitions),
        ("replication_factor", existing.replication_factor, wanted_factor),
    ]
    stored = config_texts(existing.config)
    pairs += [(key, stored.get(key), config.get(key)) for key in sorted(stored.keys() | config.keys())]
    differences = [
        f"{what} is {'not set' if is_ is None else is_}, "
        f"but the request has {'its default' if asked is None else asked}"
        for what, is_, asked in pairs
        if is_ != asked
    ]
    if differences:
        raise ProblemError(
            "topic_exists",
            f"topic {request.name} exists with a different specification: {'; '.join(differences)}",
            data={"topic": request.name},
        )


def _check_min_isr(name: str, config: Mapping[str, str], replication_factor: int) -> None:
    """Refuse a topic's `min.insync.replicas` above its number of replicas.

    A cluster-wide value above the number of replicas is not refused but capped.
    """
    asked = int(config.get(MIN_ISR, 1))
    if asked > replication_factor:
        raise ProblemError(
            "invalid_config",
            f"topic {name} requires {asked} in-sync replicas ({MIN_ISR}), but each partition has {replication_factor}",
            data={"key": MIN_ISR, "value": asked, "allowed": f"1 to {replication_factor}"},
        )


def _too_few_brokers(name: str, replication_factor: int, broker_count: int) -> ProblemError:
    return ProblemError(
        "invalid_config",
        f"topic {name} requires {replication_factor} replicas of each partition, but "
        f"{broker_count} {'broker takes' if broker_count == 1 else 'brokers take'} new replicas",
        data={"key": "replication_factor", "value": replication_factor, "allowed": f"1 to {broker_count}"},
    )


def _shrinks(name: str, partitions: int, asked: int) -> ProblemError:
    return ProblemError(
        "invalid_config",
        f"topic {name} has {partitions} partitions and cannot shrink to {asked}",
        data={"key": "partitions", "value": asked, "allowed": f"at least {partitions}"},
    )
