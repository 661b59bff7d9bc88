"""Finishes what a topic's key says is to be done, and makes what plans of topics are made from.

For `topics`, which does what users ask, and for the controllership, which finishes what earlier controllers left. Both
may be at the same topic at once: guards let one through and the other finds it done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.controller.term import ControllerTerm
from fairlead_broker.controller.topics import Planning, plan_completion
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.coordination.cluster_values import cordoned_brokers
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import TopicRecord, TopicState
from fairlead_broker.registry.transactions import Transaction

OfficeHeld: TypeAlias = Callable[[], ControllerTerm | None]
"""Tells the controller's term as long as this broker holds it."""


class TopicCompletion:
    """Drives plans in the name of the controller; refuses while this broker is not it."""

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        term: OfficeHeld,
        clock: Clock,
        new_start_index: Callable[[], int],
    ) -> None:
        """`new_start_index` says where the placement of new partitions begins."""
        self._metadata = mirror.metadata
        self._term = term
        self._clock = clock
        self._runner = PlanRunner(coordination, mirror)
        self._new_start_index = new_start_index

    async def finish(self, name: str) -> None:
        """Do what is left to be done for a topic. Raises `ProblemError` as `PlanRunner.complete` does."""
        start_index = self._new_start_index()

        def plan(size: int) -> Sequence[Transaction]:
            now = self._metadata.topics.get(name)
            return () if now is None else self.completion(name, now, size, start_index)

        await self._runner.complete(plan)

    def completion(
        self, name: str, topic: Versioned[TopicRecord], size: int, start_index: int
    ) -> Sequence[Transaction]:
        """Plan what is left of whatever the topic's key says."""
        partitions = self._metadata.partitions(topic.value.topic_id)
        return plan_completion(self.planning(size, start_index), name, topic, partitions)

    def planning(self, size: int, start_index: int = 0) -> Planning:
        """Return what plans are made from; raise `coordination_unavailable` without the term."""
        config = self._metadata.cluster_config
        return Planning(
            term=required_term(self._term),
            brokers=self._metadata.brokers,
            cluster_config=config.value if config else None,
            now_us=self._clock.now_us(),
            start_index=start_index,
            partitions_max=size,
            cordoned=cordoned_brokers(self._metadata),
        )


def required_term(term: OfficeHeld) -> ControllerTerm:
    """Return the term, or refuse: no write of a broker that does not hold it can succeed."""
    held = term()
    if held is None:
        raise ProblemError("coordination_unavailable", "this broker is not the controller")
    return held


def is_unfinished(topic: TopicRecord) -> bool:
    """Return whether partition records of a topic in creation are still missing."""
    return topic.state is TopicState.CREATING or topic.growing_to is not None
