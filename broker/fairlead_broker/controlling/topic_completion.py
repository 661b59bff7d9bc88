"""Completion of the operation that is stored under a topic's key, and the inputs of plans for topics.

`topics` completes the operations that users request, and the controllership completes operations that earlier
controllers left unfinished. Two callers may handle the same topic at the same time: a guard lets only one write
succeed, and the other caller finds the operation complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.controller.term import PARTITIONS_MAX, ControllerTerm
from fairlead_broker.controller.topics import Planning, plan_completion
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.controlling.replica_load import ReplicaLoad
from fairlead_broker.coordination.cluster_values import cordoned_brokers
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import TopicRecord, TopicState
from fairlead_broker.registry.store_writes import Transaction

HeldTerm: TypeAlias = Callable[[], ControllerTerm | None]
"""Function that returns the controller's term, or None if this broker does not hold the term."""


class TopicCompletion:
    """Runner of topic plans, which refuses calls unless this broker is the controller."""

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        term: HeldTerm,
        clock: Clock,
        load: ReplicaLoad,
        new_start_index: Callable[[], int],
    ) -> None:
        """Create a runner. `new_start_index` returns the index at which the placement of new partitions begins."""
        self._metadata = mirror.metadata
        self._term = term
        self._clock = clock
        self._load = load
        self._runner = PlanRunner(coordination, mirror)
        self._new_start_index = new_start_index

    async def finish(self, name: str) -> None:
        """Complete the operation of a topic. Raises `ProblemError` like `PlanRunner.complete`."""
        start_index = self._new_start_index()

        def plan(size: int) -> Sequence[Transaction]:
            now = self._metadata.topics.get(name)
            return () if now is None else self.completion(name, now, size, start_index)

        await self._runner.complete(plan)

    def completion(
        self, name: str, topic: Versioned[TopicRecord], size: int, start_index: int
    ) -> Sequence[Transaction]:
        """Return the remaining transactions of the operation that the topic's key names."""
        partitions = self._metadata.partitions(topic.value.topic_id)
        planning = self.planning(topic.value.topic_id, size, start_index)
        return plan_completion(planning, name, topic, partitions)

    def planning(self, topic_id: TopicId, size: int = PARTITIONS_MAX, start_index: int = 0) -> Planning:
        """Return the inputs of a plan for a topic.

        Raises `coordination_unavailable` if this broker does not hold the term.
        """
        config = self._metadata.cluster_config
        return Planning(
            term=required_term(self._term),
            brokers=self._metadata.brokers,
            cluster_config=config.value if config else None,
            now_us=self._clock.now_us(),
            start_index=start_index,
            partitions_max=size,
            cordoned=cordoned_brokers(self._metadata),
            load=self._load.of_brokers(besides=topic_id),
        )


def required_term(term: HeldTerm) -> ControllerTerm:
    """Return the term. Raises `coordination_unavailable` if this broker has no term, since no write could succeed."""
    held = term()
    if held is None:
        raise ProblemError("coordination_unavailable", "this broker is not the controller")
    return held


def is_unfinished(topic: TopicRecord) -> bool:
    """Return whether a new or growing topic still lacks partition records."""
    return topic.state is TopicState.CREATING or topic.growing_to is not None
