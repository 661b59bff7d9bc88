"""Operations that operators request on brokers and partitions: cordon, drain, restart, move and elect.

The server calls these operations. Requests that change partitions are forwarded to the broker that holds the
controller's term. Every call may raise `ProblemError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_broker.controller import reassignment
from fairlead_broker.controller.drain import draining_that_begin_again, has_nowhere_to_go, places_of
from fairlead_broker.controller.election import in_sync_brokers
from fairlead_broker.controller.partition_changes import has_live_leader
from fairlead_broker.controller.partition_limits import has_room
from fairlead_broker.controller.partition_writes import PartitionWrite, write_partitions
from fairlead_broker.controller.preferred import prefer, preferred_leader
from fairlead_broker.controller.topics import placeable
from fairlead_broker.controlling import operation_refusals as refusals
from fairlead_broker.controlling.configs import ConfigAdmin
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.controlling.restart_permits import RestartPermit, RestartPermits
from fairlead_broker.controlling.topic_completion import required_term
from fairlead_broker.coordination.cluster_values import CORDONED, DRAINING
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord, TopicState
from fairlead_broker.registry.store_writes import Delete, Transaction, absent, unchanged_since

__all__ = ["ClusterOperations", "ElectionKind", "Reassignment", "RestartPermit"]


APPOINTMENT_SECONDS_MAX: Final = 5.0
LOOK_SECONDS: Final = 0.02
IMMOVABLE_MAX: Final = 100
"""Maximum number of immovable partitions that an answer lists for a drain."""


class ElectionKind(StrEnum):
    """Kind of election that an operator requests."""

    PREFERRED = "preferred"
    """The first replica becomes the leader, if it is in sync."""
    UNCLEAN = "unclean"
    """The replica with the longest log becomes the leader, if no complete replica is left and the topic allows
    unclean elections.
    """


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress."""

    topic: str
    topic_id: TopicId
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...]
    """Brokers of the target replicas, the preferred leader first."""
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


class ClusterOperations:
    """Operations on the cluster. Each operation returns when the mirror shows its effect."""

    def __init__(self, coordination: Coordination, mirror: Mirror, controllership: Controllership) -> None:
        self._mirror = mirror
        self._metadata = mirror.metadata
        self._controllership = controllership
        self._runner = PlanRunner(coordination, mirror)
        self._configs = ConfigAdmin(coordination, mirror)
        self._permits = RestartPermits(coordination, mirror, controllership.index, controllership.near_voters)

    def gone(self) -> list[BrokerId]:
        """Return the brokers that are not registered but have replicas or a configuration."""
        known = self._controllership.index.keepers() | self._metadata.broker_configs.keys()
        return sorted(known - self._metadata.brokers.keys())

    def immovable(self, broker: BrokerId) -> list[str]:
        """Return the partitions that a broker's drain cannot move, or no partitions if the broker is not draining."""
        view, load = self._controllership.view(), self._controllership.load.of_brokers()
        if broker not in view.draining:
            return []
        index, found = self._controllership.index, list[tuple[str, PartitionIndex]]()
        for key in index.of_broker(broker):
            now, topic = index.find(key), self._metadata.topic_name(key.topic_id)
            if now is not None and topic is not None and has_nowhere_to_go(broker, now.value, view, load):
                found.append((topic, key.partition))
        return [f"{topic}-{partition}" for topic, partition in sorted(found)[:IMMOVABLE_MAX]]

    async def cordon(self, broker: BrokerId) -> None:
        """Cordon a broker: the broker gets no new replicas, even after a restart."""
        await self._want(broker, CORDONED, "true")

    async def uncordon(self, broker: BrokerId) -> None:
        """End the cordon of a broker: the broker gets new replicas again, unless it is draining."""
        await self._want(broker, CORDONED, None)

    async def drain(self, broker: BrokerId) -> None:
        """Drain a broker, registered or gone: cordon it, and move its leaderships and replicas to other brokers."""
        await self._want(broker, DRAINING, "true")

    async def undrain(self, broker: BrokerId) -> None:
        """End the drain of a broker. Moves in progress are finished."""
        await self._want(broker, DRAINING, None)

    async def request_restart(self, broker: BrokerId) -> RestartPermit:
        """Grant the only permit to restart a broker. `restart_refused` names the partitions that prevent a restart."""
        if broker not in self._metadata.brokers:
            raise refusals.broker_not_found(broker)
        return await self._permits.request(broker)

    async def unregister(self, broker: BrokerId) -> None:
        """Remove the configuration and the permit of a broker that is permanently gone and has no replicas."""
        if not self._is_known(broker):
            raise refusals.broker_not_found(broker)
        key = self._metadata.keys.broker_config(broker)

        def plan(_: int) -> Sequence[Transaction]:
            if broker in self._metadata.brokers:
                raise refusals.still_running(broker)
            kept = self._controllership.index.of_broker(broker)
            if kept:
                raise refusals.still_keeps(broker, len(kept))
            config = self._metadata.broker_config(broker)
            if config is None:
                return ()
            gone = absent(self._metadata.keys.broker(broker))
            return (Transaction((gone, unchanged_since(key, config.mod_revision)), (Delete(key),)),)

        await self._runner.complete(plan)
        await self._permits.forget(broker)

    async def reassign(
        self,
        topic: str,
        partition: PartitionIndex,
        replicas: Sequence[BrokerId],
        topic_id: TopicId | None = None,
    ) -> PartitionRecord:
        """Move a partition to these brokers, the preferred leader first, and return when the move has begun.

        Nothing changes if the partition is already on these brokers or is already being moved to them.
        """
        key, wanted = self._key(topic, partition, topic_id), tuple(replicas)

        def step(now: Versioned[PartitionRecord]) -> PartitionRecord | None:
            if reassignment.target(now.value) == wanted:
                return None
            if reassignment.is_under_way(now.value):
                raise refusals.already_moving(topic, partition, now.value)
            self._check_target(wanted, now.value)
            promise.renew(key, {key: self._added(topic, key, wanted, now.value)})
            places = places_of(wanted, partition, self._controllership.view())
            return reassignment.start(now.value, places, now.mod_revision)

        with self._controllership.load.promise() as promise:
            await self._runner.begin(self._plan(topic, key, step))
        return self._required(topic, key).value

    async def cancel_reassignment(
        self, topic: str, partition: PartitionIndex, topic_id: TopicId | None = None
    ) -> PartitionRecord:
        """Cancel the move of a partition and keep its earlier replicas.

        If the partition is not being moved, its record is unchanged. The cancellation is refused if a drain would begin
        the same move again.
        """
        key = self._key(topic, partition, topic_id)
        wanted = frozenset(self._required(topic, key).value.adding)

        def step(now: Versioned[PartitionRecord]) -> PartitionRecord | None:
            record = now.value
            if not reassignment.is_under_way(record) or not wanted.issuperset(record.adding):
                return None
            view, load = self._controllership.view(), self._controllership.load.of_brokers()
            draining = draining_that_begin_again(record, view, load)
            if draining:
                raise refusals.drain_begins_again(topic, partition, draining)
            cancelled = reassignment.cancel(key, record, self._metadata.brokers)
            if cancelled is None:
                left = reassignment.isr_without(record, record.adding)
                raise refusals.cancel_has_to_wait(topic, partition, left, record.min_isr)
            return cancelled

        await self._runner.complete(self._plan(topic, key, step))
        return self._required(topic, key).value

    async def elect(
        self,
        topic: str,
        partition: PartitionIndex,
        kind: ElectionKind,
        topic_id: TopicId | None = None,
    ) -> PartitionRecord:
        """Elect a leader now, unless the preferred replica (for an unclean election: any replica) already leads."""
        key = self._key(topic, partition, topic_id)
        if kind is ElectionKind.UNCLEAN:
            await self._elect_unclean(topic, key)
            return self._required(topic, key).value

        record = self._required(topic, key).value
        near = await self._controllership.near(key) if record.quorum is not None else frozenset()

        def step(now: Versioned[PartitionRecord]) -> PartitionRecord | None:
            record, view = now.value, self._controllership.view()
            preferred = preferred_leader(record)
            if has_live_leader(record, view.brokers) and record.leader and record.leader.broker == preferred:
                return None
            preferring = prefer(key, record, view)
            if preferring is None or (record.quorum is not None and preferred not in near):
                raise refusals.preferred_cannot_lead(topic, partition, record)
            return preferring

        await self._runner.begin(self._plan(topic, key, step))
        await self._led(topic, key)
        return self._required(topic, key).value

    async def _led(self, topic: str, key: PartitionKey) -> None:
        """Wait at most a few seconds for a vacancy to be filled: a vacancy remains while too few replicas answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(APPOINTMENT_SECONDS_MAX):
                while self._required(topic, key).value.leader is None:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251 - the mirror announces no single record

    def reassignments(self) -> tuple[Reassignment, ...]:
        """Return all reassignments in progress, ordered by topic and partition."""
        moves = []
        for key in self._controllership.index.moving:
            name, partition = self._metadata.topic_name(key.topic_id), self._controllership.index.find(key)
            if name is None or partition is None:
                continue
            record = partition.value
            moves.append(
                Reassignment(
                    topic=name,
                    topic_id=key.topic_id,
                    partition=key.partition,
                    replicas=reassignment.target(record),
                    adding=record.adding,
                    removing=record.removing,
                    isr=in_sync_brokers(record, self._metadata.brokers),
                )
            )
        return tuple(sorted(moves, key=lambda move: (move.topic, move.partition)))

    async def _elect_unclean(self, topic: str, key: PartitionKey) -> None:
        now = self._required(topic, key)
        if has_live_leader(now.value, self._metadata.brokers):
            return
        is_allowed = now.value.unclean or now.value.restored or now.value.quorum is not None
        if not is_allowed:
            raise refusals.unclean_not_allowed(topic, key.partition)
        step, silent = await self._controllership.unclean_step(key, now)
        if step is None:
            raise refusals.no_candidate(topic, key.partition, now.value)
        if silent:
            raise refusals.replicas_are_silent(topic, key.partition, silent)

        def plan(_: int) -> Sequence[Transaction]:
            if self._required(topic, key).mod_revision != now.mod_revision:
                return ()
            return (write_partitions(required_term(lambda: self._controllership.term), [step]),)

        if await self._runner.begin(plan):
            self._controllership.elected_unclean(step)

    def _plan(
        self,
        topic: str,
        key: PartitionKey,
        step: Callable[[Versioned[PartitionRecord]], PartitionRecord | None],
    ) -> Callable[[int], Sequence[Transaction]]:
        """Return a plan that computes one step of a partition record from the current mirror at each attempt."""

        def plan(_: int) -> Sequence[Transaction]:
            term = required_term(lambda: self._controllership.term)
            now = self._required(topic, key)
            record = step(now)
            if record is None:
                return ()
            return (write_partitions(term, [PartitionWrite(key, now.mod_revision, record)]),)

        return plan

    def _check_target(self, wanted: tuple[BrokerId, ...], record: PartitionRecord) -> None:
        """Refuse new replicas on unsuitable brokers. Brokers that already have a replica may keep it in any state."""
        if not wanted:
            raise refusals.bad_replicas(wanted, "names no broker", "at least one broker")
        twice = sorted({broker for broker in wanted if wanted.count(broker) > 1})
        if twice:
            raise refusals.bad_replicas(wanted, f"names broker {twice[0]} twice", "each broker once")
        if record.quorum is None and len(wanted) < record.min_isr:
            raise refusals.bad_replicas(
                wanted,
                f"has {len(wanted)} replicas, but min.insync.replicas requires {record.min_isr} in sync",
                f"at least {record.min_isr} brokers",
            )
        view = self._controllership.view()
        current = {replica.broker for replica in record.replicas}
        takers = {each.broker for each in placeable(view.brokers, view.cordoned)}
        for broker in wanted:
            if broker in current or broker in takers:
                continue
            if broker not in view.brokers:
                raise refusals.broker_not_found(broker)
            allowed = ", ".join(map(str, sorted(takers | current)))
            raise refusals.bad_replicas(
                wanted, f"names broker {broker}, which takes no new replicas", allowed
            )

    def _added(
        self, topic: str, key: PartitionKey, wanted: tuple[BrokerId, ...], record: PartitionRecord
    ) -> list[BrokerId]:
        """Return the brokers that get a new replica, and refuse brokers that have their maximum number of replicas."""
        current = {replica.broker for replica in record.replicas}
        added = [broker for broker in wanted if broker not in current]
        brokers, load = self._metadata.brokers, self._controllership.load.of_brokers(besides=key)
        full = [broker for broker in added if not has_room(broker, brokers, load)]
        if full:
            raise refusals.too_many_partitions(topic, full, brokers, load)
        return added

    async def _want(self, broker: BrokerId, key: str, value: str | None) -> None:
        if not self._is_known(broker):
            raise refusals.broker_not_found(broker)
        await self._configs.set_on_broker(broker, {key: value})

    def _is_known(self, broker: BrokerId) -> bool:
        return (
            broker in self._metadata.brokers
            or self._metadata.broker_config(broker) is not None
            or bool(self._controllership.index.of_broker(broker))
        )

    def _key(self, topic: str, partition: PartitionIndex, topic_id: TopicId | None) -> PartitionKey:
        found = self._metadata.topics.get(topic)
        if found is None or found.value.state is TopicState.DELETING:
            raise refusals.topic_not_found(topic)
        if topic_id is not None and topic_id != found.value.topic_id:
            raise refusals.topic_recreated(topic, topic_id, found.value.topic_id)
        key = PartitionKey(found.value.topic_id, partition)
        if self._controllership.index.find(key) is None:
            raise refusals.partition_not_found(topic, partition, found.value.partitions)
        return key

    def _required(self, topic: str, key: PartitionKey) -> Versioned[PartitionRecord]:
        found = self._controllership.index.find(key)
        if found is None:
            raise refusals.topic_not_found(topic)
        return found
