"""Claim of the controller's term, which one broker holds at a time, and the tasks of the controller.

The runtime of every broker creates and runs a controllership. All tasks are derived from the mirror alone
(`controller.partition_changes`), so that any controller can continue the tasks of an earlier controller. Only
partitions that are affected by a change are examined again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

import structlog

from fairlead_api.identifiers import BrokerId, Revision, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.controller.leader_moves import is_leaving
from fairlead_broker.controller.partition_changes import ClusterView, has_live_leader, next_record
from fairlead_broker.controller.partition_writes import PartitionWrite, write_partitions
from fairlead_broker.controller.preferred import preferred_leader
from fairlead_broker.controller.reassignment import is_under_way
from fairlead_broker.controller.term import PARTITIONS_MAX, ControllerTerm
from fairlead_broker.controlling.appointments import Appointments, Ask, no_promises
from fairlead_broker.controlling.balancing import Balancing
from fairlead_broker.controlling.leader_moves import LeaderMoves, NearVoters, no_near_voters
from fairlead_broker.controlling.replica_load import ReplicaLoad
from fairlead_broker.controlling.topic_completion import TopicCompletion
from fairlead_broker.controlling.unclean_elections import (
    LeaderlessPartition,
    Survey,
    UncleanElections,
    no_answers,
)
from fairlead_broker.coordination.bootstrap import ClusterBootstrap
from fairlead_broker.coordination.cluster_values import cluster_number, cluster_view
from fairlead_broker.coordination.membership import Membership
from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.coordination.partition_index import PartitionsByBroker, TouchedPartitions
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationClosed,
    CoordinationError,
    TransactionTooLarge,
)
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import BrokerChange, PartitionChange, Versioned
from fairlead_broker.registry.records import BrokerState, PartitionRecord

TICK_SECONDS: Final = 1.0
"""Seconds between two checks for changes that no event announces, such as the end of a delay or of an outage of the
store.
"""
UNFINISHED_SECONDS: Final = 5.0
"""Seconds after which the controller completes an unfinished topic, because the broker that began the operation
should have completed it by then.
"""

_log = structlog.get_logger("fairlead.controller")


class Controllership:
    """The controller part of a broker, which claims the term when it is vacant and performs the controller's tasks."""

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        membership: Callable[[], Membership],
        clock: Clock,
        *,
        survey: Survey = no_answers,
        ask: Ask = no_promises,
        near: NearVoters = no_near_voters,
        new_start_index: Callable[[], int] = lambda: 0,
        count_elections: Callable[[str, int], None] = lambda kind, count: None,
        observe_vacancy: Callable[[float], None] = lambda seconds: None,
        show_vacancies: Callable[[int, Mapping[BrokerId, int]], None] = lambda vacancies, missing: None,
    ) -> None:
        """Create a controllership. `membership` returns the broker's current membership, which may be replaced later.

        `count_elections` is called with a kind, `clean` or `unclean`, and the number of installed leaders.
        `observe_vacancy` is called with the duration of each vacancy in seconds when it is filled. `show_vacancies` is
        called in each turn with the number of vacancies and, by broker, the number of vacancies that need the broker's
        promise.
        """
        self._coordination = coordination
        self._mirror = mirror
        self._metadata = mirror.metadata
        self._membership = membership
        self._clock = clock
        self._bootstrap = ClusterBootstrap(coordination, mirror.metadata.keys, clock)
        self._index = PartitionsByBroker(mirror.metadata)
        self._load = ReplicaLoad(self._index)
        self._balancing = Balancing(mirror.metadata, self._index, self._load, clock)
        self._completion = TopicCompletion(
            coordination, mirror, lambda: self.term, clock, self._load, new_start_index
        )
        self._wake = asyncio.Event()
        self._touched = TouchedPartitions(self._is_leaderless)
        self._due_topics: set[str] = set()
        self._unfinished: dict[str, tuple[Revision, float]] = {}
        self._leaderless: dict[PartitionKey, float] = {}
        self._portion_size = PARTITIONS_MAX
        self._term: Revision | None = None
        self._unclean = UncleanElections(survey, self.view, clock, self._wake.set)
        self._appointments = Appointments(ask, self.view, clock, self._wake.set)
        self.near_voters = near
        """Function that asks a leader which voters are near, for its partitions with a write quorum."""
        self._moves = LeaderMoves(near, self.view, self._index.find, clock, self._wake.set)
        self._surveys: asyncio.TaskGroup | None = None
        """Task group of the surveys and of the requests about vacancies, or None before `run` is called."""
        self._lease_seconds_max = 0
        """Maximum number of seconds after the end of its lease that an incarnation may still act as if it were
        registered.
        """
        self._count_elections = count_elections
        self._observe_vacancy = observe_vacancy
        self._show_vacancies = show_vacancies
        self._waiting: set[asyncio.Future[None]] = set()
        """Calls that wait until a controller is known."""
        mirror.subscribe(self._changed)

    @property
    def term(self) -> ControllerTerm | None:
        """This broker's term according to the mirror, or None if this broker is not the controller."""
        standing, own = self._metadata.controller, self._membership()
        if standing is None or (standing.value.broker, standing.value.broker_epoch) != (
            own.broker_id,
            own.broker_epoch,
        ):
            return None
        return ControllerTerm(self._metadata.keys, standing.create_revision)

    async def known(self, seconds_max: float) -> None:
        """Wait until this broker has the term or the mirror shows another controller, for at most `seconds_max`.

        Right after a start and after the end of a lease, no controller exists for a moment.
        """
        if self._is_known:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await waiter
        finally:
            self._waiting.discard(waiter)

    @property
    def _is_known(self) -> bool:
        standing = self._metadata.controller
        if standing is None or standing.value.broker == self._membership().broker_id:
            return self.term is not None
        return True

    @property
    def leaderless(self) -> int:
        """Number of partitions that no broker can currently lead, or 0 if this broker is not the controller.

        Partitions with an unreadable record are included.
        """
        unreadable = 0 if self._term is None else len(self._metadata.unreadable_partitions)
        return len(self._leaderless) + unreadable

    @property
    def moving(self) -> int:
        """Number of partitions that are being moved, or 0 if this broker is not the controller."""
        return 0 if self._term is None else len(self._index.moving)

    @property
    def index(self) -> PartitionsByBroker:
        """Index of the partitions in the mirror by broker."""
        return self._index

    @property
    def load(self) -> ReplicaLoad:
        """Number of replicas on each broker, including replicas that operations in progress will add."""
        return self._load

    def view(self) -> ClusterView:
        """Return the registered brokers in the mirror; decisions about partitions are based on them."""
        return cluster_view(self._metadata)

    async def begin(self) -> None:
        """Try once to claim the term, and perform all due tasks if the claim succeeds.

        Raises only `CoordinationClosed`, because `run` retries every other failed step.
        """
        await self._try_turn()

    async def run(self) -> None:
        """Claim the term and perform due tasks until cancelled. The mirror must be running."""
        try:
            async with asyncio.TaskGroup() as self._surveys:
                while True:
                    self._wake.clear()
                    if await self._try_turn():
                        await self._wait_for_change()
                    else:
                        # No event announces that the store answers again, so only another attempt can detect an answer.
                        await asyncio.sleep(TICK_SECONDS)  # noqa: TID251
        except* CoordinationClosed as closed:
            raise closed.exceptions[0] from None

    async def _try_turn(self) -> bool:
        try:
            await self._turn()
        except CoordinationClosed:
            raise
        except (CoordinationError, ProblemError) as error:
            _log.warning("controller's turn failed", reason=str(error))
            return False
        return True

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(min(TICK_SECONDS, self._appointments.look_seconds or TICK_SECONDS)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _turn(self) -> None:
        """Perform all tasks that are possible now."""
        if self.term is None:
            await self._claim()
        term = self.term
        if term is None:
            # The next term examines every partition and topic, so the recorded partitions and topics are dropped.
            self._term = None
            self._touched.clear()
            self._due_topics.clear()
            self._leaderless.clear()
            self._unclean.forget()
            self._appointments.forget()
            self._moves.forget()
            self._show_vacancies(0, {})
            return
        if term.revision != self._term:
            self._enter(term)
        await self._settle_partitions(term)
        await self._fill_vacancies(term)
        await self._settle_topics()
        await self._elect_unclean(term)
        await self._write(term, self._balanced())
        await self._settle_partitions(term)

    async def _claim(self) -> None:
        own = self._membership()
        if self._metadata.controller is not None or own.registration.state is BrokerState.STOPPING:
            return
        claimed = await self._bootstrap.claim_controller(own)
        if claimed is not None:
            await self._mirror.wait_for(claimed.revision)

    def _enter(self, term: ControllerTerm) -> None:
        """Begin a term by queueing every partition and topic: an earlier controller may have left tasks unfinished."""
        _log.info("controller's term claimed", term=term.revision)
        self._term = term.revision
        self._touched.add(key for key, _ in self._index.partitions())
        self._due_topics.update(self._metadata.topics)
        self._leaderless.clear()
        self._unclean.forget()
        self._appointments.forget()
        self._moves.forget()

    def _changed(self, update: MirrorUpdate) -> None:
        """Record the partitions and topics that an update of the mirror affects. The mirror calls this method."""
        for change in update.changes:
            self._touched.add(self._index.touched_by(change))
            if isinstance(change, BrokerChange) and change.before is not None:
                self._lease_seconds_max = max(self._lease_seconds_max, change.before.value.lease_seconds or 0)
            if isinstance(change, PartitionChange):
                self._load.follow(change)
                if _has_moved(change):
                    # Before the move, the number of replicas may have limited the effect of the topic's configuration.
                    self._due_topics.update(self._named(change.topic_id))
        self._wake.set()
        if self._waiting and self._is_known:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def _named(self, topic_id: TopicId) -> Iterator[str]:
        name = self._metadata.topic_name(topic_id)
        if name is not None:
            yield name

    def _is_leaderless(self, key: PartitionKey) -> bool:
        """Return whether clients wait for the partition because it has no leader.

        Only the controller calls this method.
        """
        partition = self._index.find(key) if self._term is not None else None
        return partition is not None and not has_live_leader(partition.value, self._metadata.brokers)

    async def _settle_partitions(self, term: ControllerTerm) -> None:
        """Write the next steps of queued partitions until no step remains or the term is lost."""
        while self._touched and self.term == term:
            keys = self._touched.take(self._portion_size)
            view = self.view()
            await self._write(term, [write for key in keys if (write := self._step(key, view))])

    def _step(self, key: PartitionKey, view: ClusterView) -> PartitionWrite | None:
        partition = self._index.find(key)
        if partition is None:
            self._leaderless.pop(key, None)
            return None
        record = partition.value
        successor = next_record(key, record, view)
        if successor is not None:
            elects = successor.leader_epoch != record.leader_epoch and successor.leader is not None
            if elects:
                # The settings of a partition without a live leader are written after a leader is elected.
                self._due_topics.update(self._named(key.topic_id))
            return PartitionWrite(key, partition.mod_revision, successor, elects=elects)
        if has_live_leader(record, view.brokers):
            self._leaderless.pop(key, None)
            if is_leaving(record, view):
                self._moves.want(key)
        else:
            self._leaderless.setdefault(key, self._clock.monotonic())
        return None

    async def _write(
        self, term: ControllerTerm, writes: Sequence[PartitionWrite], kind: str = "clean"
    ) -> None:
        """Write partition records in portions.

        Partitions whose writes failed, were not sent or have an unknown outcome are queued again.
        """
        waiting = list(writes)
        try:
            while waiting and self.term == term:
                portion = waiting[: self._portion_size]
                if await self._write_portion(term, portion):
                    self._count_elections(kind, sum(write.elects for write in portion))
                    self._observe_vacancies(portion)
                else:
                    self._touched.add(write.key for write in portion)
                del waiting[: len(portion)]
        finally:
            self._touched.add(write.key for write in waiting)

    async def _write_portion(self, term: ControllerTerm, writes: Sequence[PartitionWrite]) -> bool:
        """Run one transaction, and wait until the mirror shows its effect or the conflicting write.

        The portions become smaller if other brokers write the same partition records, and larger again afterwards.
        """
        transaction = write_partitions(term, writes)
        smaller = max(1, len(writes) // 2)
        try:
            result = await self._coordination.transact(transaction.compares, transaction.success)
        except TransactionTooLarge:
            if len(writes) == 1:
                raise
            self._portion_size = smaller
            return False
        self._portion_size = min(PARTITIONS_MAX, self._portion_size * 2) if result.succeeded else smaller
        await self._mirror.wait_for(result.revision)
        return result.succeeded

    def _observe_vacancies(self, written: Sequence[PartitionWrite]) -> None:
        now = self._clock.monotonic()
        for write in written:
            since = self._leaderless.get(write.key)
            if write.elects and write.record.quorum is not None and since is not None:
                self._observe_vacancy(now - since)

    async def _settle_topics(self) -> None:
        """Complete unfinished topics: all of them when a term starts, and later only those unfinished for too long."""
        self._note_unfinished()
        while self._due_topics:
            name = next(iter(self._due_topics))
            await self._completion.finish(name)
            self._due_topics.discard(name)

    def _note_unfinished(self) -> None:
        now, unfinished = self._clock.monotonic(), dict[str, tuple[Revision, float]]()
        for name in self._metadata.unsettled_topics:
            revision = self._metadata.topics[name].mod_revision
            before = self._unfinished.get(name)
            since = before[1] if before and before[0] == revision else now
            unfinished[name] = (revision, since)
            if now - since >= UNFINISHED_SECONDS:
                self._due_topics.add(name)
        self._unfinished = unfinished

    async def _fill_vacancies(self, term: ControllerTerm) -> None:
        """Fill vacancies of partitions with a write quorum, and ask voters for the answers still needed (quorum Q8)."""
        filled = [*self._appointments.appointed(self._index.find), *self._moves.due()]
        if filled:
            await self._write(term, filled)
            await self._settle_partitions(term)
        if self._surveys is not None:
            self._appointments.begin(self._surveys, self._vacancies())
            self._moves.begin(self._surveys)
        vacancies = list(self._vacancies())
        missing = (self._appointments.missing(key, partition.value) for key, partition in vacancies)
        self._show_vacancies(len(vacancies), Counter(chain.from_iterable(missing)))

    def _balanced(self) -> list[PartitionWrite]:
        """Return the writes that balance brokers.

        In a partition with a write quorum, leadership moves once the voter that should lead is near.
        """
        writes = []
        for write in self._balancing.proposals(self.view()):
            if write.record.quorum is not None and write.record.leader is None:
                self._moves.want(write.key, preferred_leader(write.record))
            else:
                writes.append(write)
        return writes

    def _vacancies(self) -> Iterator[LeaderlessPartition]:
        for key in self._leaderless:
            partition = self._index.find(key)
            if (
                partition is not None
                and partition.value.quorum is not None
                and partition.value.leader is None
            ):
                yield key, partition

    async def _elect_unclean(self, term: ControllerTerm) -> None:
        """Elect the replica with the longest log if no complete replica has returned in time and the topic allows this.

        Unclean elections include partitions whose record was restored from a backup, because none of their replicas is
        known to be complete.
        """
        delay_seconds = cluster_number(self._metadata, "unclean.leader.election.delay.ms") / 1000
        # A leader whose lease was ended early still acts as the leader, and may acknowledge records alone, for the full
        # time to live of the lease.
        patience_seconds = max(delay_seconds, self._membership().lease.ttl_seconds, self._lease_seconds_max)
        await self._write(term, self._unclean.elected(self._index.find, patience_seconds), "unclean")
        if self._surveys is not None:
            self._unclean.begin(self._surveys, self._due_for_survey(patience_seconds))

    def _due_for_survey(self, delay_seconds: float) -> Iterator[LeaderlessPartition]:
        over = self._clock.monotonic() - delay_seconds
        for key, since in self._leaderless.items():
            partition = self._index.find(key)
            if partition is None or partition.value.quorum is not None:
                continue
            if partition.value.restored or (partition.value.unclean and since <= over):
                yield key, partition

    async def near(self, key: PartitionKey) -> frozenset[BrokerId]:
        """Return the voters of a partition with a write quorum that its leader reports as near."""
        return await self._moves.near(key)

    async def unclean_step(
        self, key: PartitionKey, partition: Versioned[PartitionRecord]
    ) -> tuple[PartitionWrite | None, tuple[BrokerId, ...]]:
        """Survey the live replicas for an operator, without waiting for brokers that are gone.

        Returns the write that elects the replica with the longest log (None if no replica answers), and the live
        brokers that did not answer.
        """
        surveyed = await self._unclean.survey(key, partition)
        return self._unclean.election(surveyed, forced=True), surveyed.silent(self.view())

    def elected_unclean(self, write: PartitionWrite) -> None:
        """Count an unclean election that an operator ordered and that was written."""
        self._count_elections("unclean", 1)
        self._observe_vacancies([write])


def _has_moved(change: PartitionChange) -> bool:
    """Return whether this change completes or cancels a reassignment."""
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and is_under_way(before.value)
        and not is_under_way(after.value)
    )
