"""One leader over real logs and a real store, with followers that fetch without a network, for tests of leading.

Tests advance the time, and the store fails on request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.batch.header import batch_span
from fairlead_api.configuration import Durability as ConfiguredDurability
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import (
    Acks,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    Revision,
    TopicId,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import CoordinationUnavailable, UnknownOutcome
from fairlead_broker.log import LogDirectory
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.peers.messages import (
    NEW_SESSION,
    PeerIncarnation,
    PeerPartition,
    ProgressPartition,
    ProgressRequest,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResult,
)
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Replica, decode, encode
from fairlead_broker.registry.store_writes import Compare, Get, Operation, Put, TransactionResult
from fairlead_broker.replication import PartitionLeader, RegisteredBroker, ReplicaProgress
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.sync_rounds import Syncing, SyncRounds
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.leader_writes import LeaderWrites
from fairlead_broker.runtime.leading.producing import ByteBudget, ProduceItem, Producing
from fairlead_broker.runtime.leading.shared_parts import SharedParts, TransactionalPartition
from fairlead_broker.runtime.meters import BrokerMeters
from fairlead_broker.runtime.peer_serving.replica_serving import ReplicaServing
from fairlead_broker.runtime.requests import AppendResult
from fairlead_broker.telemetry import Telemetry
from log_kit import CLUSTER, DIRECTORY, TOPIC, SteppingClock
from runtime_kit import batch

KEYS = Keys("test")
LEADER, SECOND, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
BROKERS = (LEADER, SECOND, THIRD)
LEADER_EPOCH = LeaderEpoch(5)
LAG_SECONDS = 10.0
ZERO = Offset(0)


class NoLooks:
    """Stub of a broker's checks of open transactions; the stub reads no records and stores the hints that it gets."""

    def __init__(self) -> None:
        self.hints: list[ProducerId] = []
        self.markers: list[MarkerKind] = []
        self.partitions: list[TransactionalPartition] = []

    def hint(self, producers: Iterable[ProducerId]) -> None:
        """Note the hint."""
        self.hints += producers

    def has_open(self, partition: TransactionalPartition) -> None:
        """Note the partition."""
        self.partitions.append(partition)

    def appended_marker(self, kind: MarkerKind) -> None:
        """Note the marker."""
        self.markers.append(kind)

    def took_leadership(self, partition: TransactionalPartition) -> None:
        """Note the partition."""
        self.partitions.append(partition)


class UnreliableStore:
    """A store whose next transactions fail: `away`, or `lost` with an unknown outcome."""

    def __init__(self, store: EmbeddedCoordination) -> None:
        self._store = store
        self.faults: list[str] = []
        """Faults of the next transactions: `away`; `lost` before the change was applied; `applied` with a lost answer.
        """
        self.transactions = 0
        self.answered = 0
        """Number of transactions whose answer or failure has reached the caller."""

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Run a transaction, or apply the next fault."""
        self.transactions += 1
        try:
            return await self._transact(compares, success, failure)
        finally:
            self.answered += 1

    async def _transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
    ) -> TransactionResult:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "away":
            raise CoordinationUnavailable(fault)
        if fault == "lost":
            raise UnknownOutcome(fault)
        result = await self._store.transact(compares, success, failure)
        if fault == "applied":
            raise UnknownOutcome(fault)
        return result


@dataclass
class Leading:
    """Broker 1, which leads every partition of one topic."""

    clock: SteppingClock
    store: EmbeddedCoordination
    unreliable: UnreliableStore
    directory: LogDirectory
    shared: SharedParts
    meters: BrokerMeters
    partitions: list[LeaderReplica]
    serving: ReplicaServing
    producing: Producing
    epochs: dict[BrokerId, BrokerEpoch]
    confirmed: list[bool]
    """Whether the lease is confirmed, in a list of one item that a test changes."""
    failures: list[Exception]

    @property
    def partition(self) -> LeaderReplica:
        """The first partition."""
        return self.partitions[0]

    async def produce(
        self, *values: bytes, acks: Acks = Acks.ALL, timeout_seconds: float = 30.0, partition: int = 0
    ) -> AppendResult:
        """Append one batch; raise an exception if the batch is refused."""
        item = ProduceItem(self.partitions[partition], memoryview(batch(*values)))
        [answer] = await self.producing.produce([item], acks=acks, timeout_seconds=timeout_seconds)
        if isinstance(answer, ProblemError):
            raise answer
        return answer

    def pass_time(self, seconds: float) -> None:
        """Advance the time and send ticks to the partitions."""
        self.clock.time_us += int(seconds * 1e6)
        for partition in self.partitions:
            partition.time_passed()

    async def stored(self, partition: int = 0) -> PartitionRecord:
        """Return the partition record in the store."""
        key = KEYS.partition(TOPIC, PartitionIndex(partition))
        result = await self.store.transact((), (Get(key),))
        [found] = result.reads
        assert found is not None
        return decode(key, found.value, PartitionRecord)

    async def isr(self, partition: int = 0) -> set[int]:
        """Return the in-sync replicas in the store's partition record."""
        return {entry.broker for entry in (await self.stored(partition)).isr}

    async def put(self, record: PartitionRecord, partition: int = 0) -> Revision:
        """Write a record without the leader, as a controller does."""
        key = KEYS.partition(TOPIC, PartitionIndex(partition))
        return (await self.store.transact((), (Put(key, encode(record)),))).revision

    def follower(self, broker: BrokerId = SECOND) -> Follower:
        """Return a follower with empty logs."""
        return Follower(self, PeerIncarnation(broker, self.epochs[broker]), len(self.partitions))


@dataclass
class Copy:
    """The parts of a follower's log of one partition that its leader can observe."""

    end: Offset = ZERO
    synced: Offset = ZERO
    log_start: Offset = ZERO
    last_epoch: LeaderEpoch | None = None
    leader_epoch: LeaderEpoch = LEADER_EPOCH
    generation: int = 0
    named: bool = False
    high_watermark: Offset | None = None


class Follower:
    """Sends fetches without a follower's loop, one request for each call."""

    def __init__(self, leading: Leading, life: PeerIncarnation, partitions: int) -> None:
        self.leading = leading
        self.life = life
        self.copies = [Copy() for _ in range(partitions)]
        self.session = NEW_SESSION
        self.sequence = 0

    @property
    def copy(self) -> Copy:
        """The follower's log of the first partition."""
        return self.copies[0]

    async def fetch(
        self, wait_ms: int = 0, *, syncs: bool = True, forgotten: Iterable[int] = (), max_bytes: int = 1 << 20
    ) -> list[ReplicaFetchResult]:
        """Fetch with the changed partitions, store the records, and sync them unless `syncs` is False."""
        specs = [self._spec(index) for index, copy in enumerate(self.copies) if not copy.named]
        request = ReplicaFetchRequest(
            session=self.session,
            sequence=self.sequence,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            partitions=specs,
            forgotten=[PeerPartition(topic_id=TOPIC, partition=PartitionIndex(each)) for each in forgotten],
        )
        for copy in self.copies:
            copy.named = True
        answer = await self.leading.serving.fetch(self.life, request)
        self.session, self.sequence = answer.session, self.sequence + 1
        if answer.session == NEW_SESSION:
            self.restart()
        for result in answer.results:
            self._take(self.copies[result.partition], result, syncs)
        return list(answer.results)

    async def catch_up(self) -> None:
        """Fetch until no record is left, and once more to report the end to the leader."""
        while any(result.data for result in await self.fetch()):
            pass

    def progress(self, partition: int = 0) -> None:
        """Sync the fetched records and send the progress to the leader."""
        copy = self.copies[partition]
        copy.synced = copy.end
        told = ProgressPartition(
            topic_id=TOPIC,
            partition=PartitionIndex(partition),
            generation=copy.generation,
            leader_epoch=copy.leader_epoch,
            synced_offset=copy.end,
        )
        self.leading.serving.progress(self.life, ProgressRequest(partitions=[told]))

    def restart(self) -> None:
        """Begin a new session with the next request."""
        self.session, self.sequence = NEW_SESSION, 0
        for copy in self.copies:
            copy.named = False

    def _spec(self, index: int) -> ReplicaFetchPartition:
        copy = self.copies[index]
        return ReplicaFetchPartition(
            topic_id=TOPIC,
            partition=PartitionIndex(index),
            generation=copy.generation,
            leader_epoch=copy.leader_epoch,
            last_epoch=copy.last_epoch,
            fetch_offset=copy.end,
            synced_offset=copy.synced,
            log_start=copy.log_start,
            max_bytes=1 << 20,
        )

    def _take(self, copy: Copy, result: ReplicaFetchResult, syncs: bool) -> None:
        if result.problem is not None or result.diverging is not None:
            copy.named = False
            return
        copy.high_watermark = result.high_watermark
        for data in result.data:
            at = 0
            while at < len(data):
                base_offset, nbytes, last_delta = batch_span(data, at)
                assert base_offset == copy.end, "batches come without a gap"
                copy.end, at = Offset(base_offset + last_delta + 1), at + nbytes
            copy.last_epoch, copy.named = result.leader_epoch, False
        if syncs:
            copy.synced = copy.end
        if result.log_start > copy.log_start:
            copy.log_start, copy.named = result.log_start, False


class Tasks:
    """Background tasks and resources of a test, which `end` closes."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.closing: list[Callable[[], object]] = []

    def spawn(self, coroutine: Awaitable[None]) -> None:
        """Run a coroutine until the end of the test."""
        self.tasks.append(asyncio.ensure_future(coroutine))

    async def end(self) -> None:
        """Cancel all tasks and close all resources in reverse order; raise the error of a task that failed."""
        for task in self.tasks:
            if not task.done():
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for close in reversed(self.closing):
            closed = close()
            if isinstance(closed, Awaitable):
                await closed


async def start_leading(
    path: Path,
    tasks: Tasks,
    *,
    durability: DurabilityState = DurabilityState.REPLICATED,
    partitions: int = 1,
    isr: Sequence[BrokerId] = BROKERS,
    min_isr: int = 2,
    unclean: bool = False,
    storage: PosixStorage | None = None,
) -> Leading:
    """Register three brokers, write the records, and make broker 1 the leader of all partitions."""
    clock = SteppingClock(SystemClock().now_us())
    store = await EmbeddedCoordination.open(path / "coordination.sqlite", clock)
    tasks.closing.append(store.close)
    epochs = {
        broker: BrokerEpoch((await store.transact((), (Put(KEYS.broker(broker), b"{}"),))).revision)
        for broker in BROKERS
    }
    lives = {broker: InSync(broker=broker, broker_epoch=epoch) for broker, epoch in epochs.items()}
    record = PartitionRecord(
        leader=lives[LEADER],
        leader_epoch=LEADER_EPOCH,
        replicas=tuple(Replica(broker=broker, directory=f"d{broker}") for broker in BROKERS),
        isr=tuple(lives[broker] for broker in isr),
        min_isr=min_isr,
        durability=durability,
        unclean=unclean,
    )
    leading = _parts(path, tasks, clock, store, epochs, storage)
    for index in map(PartitionIndex, range(partitions)):
        revision = await leading.put(record, index)
        partition = _start_leading(leading, index, record, revision)
        leading.partitions.append(partition)
        tasks.spawn(partition.run())
    return leading


def _parts(
    path: Path,
    tasks: Tasks,
    clock: SteppingClock,
    store: EmbeddedCoordination,
    epochs: dict[BrokerId, BrokerEpoch],
    storage: PosixStorage | None,
) -> Leading:
    """Return the parts that the partitions share, as in a broker."""
    telemetry = Telemetry(structlog.wrap_logger(structlog.ReturnLogger(), processors=[]))
    directory = LogDirectory.open(
        path / "data",
        cluster_id=CLUSTER,
        broker_id=1,
        clock=clock,
        new_directory_id=DIRECTORY,
        storage=storage,
    )
    pool, syncing, meters = DiskPool("disk", 2), Syncing(2, directory.volume), BrokerMeters(telemetry)
    tasks.closing += [lambda: directory.close(False), syncing.close, pool.close]
    unreliable = UnreliableStore(store)
    writes = LeaderWrites(unreliable, KEYS, telemetry.log)  # type: ignore[arg-type]
    partitions: list[LeaderReplica] = []
    confirmed: list[bool] = [True]
    failures: list[Exception] = []

    def failed(error: Exception) -> None:
        failures.append(error)
        for each in partitions:
            each.storage_failed()

    def find(topic_id: TopicId, index: PartitionIndex) -> LeaderReplica:
        found = partitions[index]
        if found.closed:
            raise ProblemError("no_leader", f"no broker leads {topic_id} here")
        return found

    rounds = SyncRounds(
        syncing, clock, unsynced_bytes_max=1 << 28, failed=failed, observe_seconds=lambda _: None
    )
    tasks.spawn(rounds.run())
    tasks.spawn(writes.run())
    budget = ByteBudget(1 << 28)
    shared = _shared(clock, pool, rounds, budget, failed, writes, confirmed)
    serving = ReplicaServing(find, pool, clock, epochs[LEADER], bytes_max=1 << 26, wait_seconds_max=30.0)
    producing = _producing(clock, pool, budget, meters)
    return Leading(
        clock,
        store,
        unreliable,
        directory,
        shared,
        meters,
        partitions,
        serving,
        producing,
        epochs,
        confirmed,
        failures,
    )


def _producing(clock: SteppingClock, pool: DiskPool, budget: ByteBudget, meters: BrokerMeters) -> Producing:
    return Producing(
        clock,
        pool,
        budget,
        meters,
        on_loop_bytes_max=1 << 21,
        timeout_seconds_max=60.0,
        takes_transactions=lambda: True,
    )


def _shared(
    clock: SteppingClock,
    pool: DiskPool,
    rounds: SyncRounds,
    budget: ByteBudget,
    failed: Callable[[Exception], None],
    writes: LeaderWrites,
    confirmed: list[bool],
) -> SharedParts:
    return SharedParts(
        clock=clock,
        pool=pool,
        rounds=rounds,
        give_back_bytes=budget.give_back,
        queue_batches_max=1000,
        sync_interval_seconds=5.0,
        decompressed_bytes_max=1 << 26,
        directory_failed=failed,
        write_record=writes.write,
        lease_confirmed=lambda epoch: confirmed[0],
        looks=NoLooks(),
    )


def _start_leading(
    leading: Leading, index: PartitionIndex, record: PartitionRecord, revision: Revision
) -> LeaderReplica:
    config = TopicConfig(
        durability=ConfiguredDurability(record.durability.value), min_insync_replicas=record.min_isr
    )
    registered = {
        broker: RegisteredBroker(epoch, Revision(epoch), joins=True, directories=(f"d{broker}",))
        for broker, epoch in leading.epochs.items()
    }
    log = leading.directory.open_partition(TOPIC, index, config)
    machine = PartitionLeader(
        LEADER,
        leading.epochs[LEADER],
        record,
        revision,
        registered,
        ReplicaProgress(log.end_offset, log.synced_offset),
        log.checkpoint_high_watermark,
        log.log_start_offset,
        leading.clock.monotonic(),
        LAG_SECONDS,
    )
    key, meters = TopicIdPartition(TOPIC, index), leading.meters.topic("flights")
    partition = LeaderReplica("flights", key, config, log, machine, leading.shared, meters)
    partition.start_leading()
    return partition


def replaced(record: PartitionRecord, **fields: object) -> PartitionRecord:
    """Return a changed copy of a record."""
    return msgspec.structs.replace(record, **fields)
