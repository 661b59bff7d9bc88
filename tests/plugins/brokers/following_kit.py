"""A follower with real logs that fetches from the leader of `leading_kit` over a link with faults on request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from fairlead_api.configuration import Durability as ConfiguredDurability
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import BrokerId, Offset, PartitionIndex, Revision, TopicIdPartition
from fairlead_broker.log import LogDirectory, PartitionLog
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.peers.messages import (
    PeerIncarnation,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchRequest,
    decode_answer,
    encode_answer,
)
from fairlead_broker.peers.peers import PeerUnavailable
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.sync_rounds import Syncing, SyncRounds
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.following.move_throttle import MoveThrottle
from fairlead_broker.runtime.following.replica_fetching import ReplicaFetcher
from fairlead_broker.runtime.leading.producing import ByteBudget
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.roles import Following
from fairlead_broker.telemetry import Telemetry
from leading_kit import LEADER, LEADER_EPOCH, Leading, NoLooks, Tasks
from log_kit import CLUSTER, TOPIC
from waiting import until


class Link:
    """Sends the requests of one follower to the leader; each fault affects one fetch."""

    def __init__(self, leading: Leading, life: PeerIncarnation) -> None:
        self._leading = leading
        self._life = life
        self.faults: list[str] = []
        """Faults of the next fetches: `away` drops the request, `lost` the answer, `flipped` changes a bit of the
        records.
        """
        self.silent = False
        """Whether progress requests are lost."""
        self.requests: list[ReplicaFetchRequest] = []

    async def replica_fetch(self, broker: BrokerId, request: ReplicaFetchRequest) -> ReplicaFetchAnswer:
        """Fetch, or apply the next fault."""
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "away":
            raise PeerUnavailable(broker, fault, sent=False)
        answer = await self._leading.serving.fetch(self._life, request)
        if fault == "lost":
            raise PeerUnavailable(broker, fault, sent=True)
        carried = decode_answer(b"".join(encode_answer(answer)))
        results = [
            msgspec.structs.replace(each, data=(_joined(each.data, flipped=fault == "flipped"),))
            if each.data
            else each
            for each in carried.results
        ]
        return ReplicaFetchAnswer(carried.session, results)

    async def progress(self, broker: BrokerId, request: ProgressRequest) -> None:
        """Send the progress to the leader unless progress requests are lost."""
        if self.silent:
            raise PeerUnavailable(broker, "silent", sent=True)
        self._leading.serving.progress(self._life, request)


def _joined(parts: object, *, flipped: bool) -> memoryview:
    data = bytearray(b"".join(parts))  # type: ignore[arg-type]
    if flipped:
        data[len(data) // 2] ^= 1
    return memoryview(data)


@dataclass
class RealFollower:
    """A broker that follows every partition of the leader."""

    leading: Leading
    tasks: Tasks
    link: Link
    directory: LogDirectory
    fetcher: ReplicaFetcher
    shared: SharedParts
    partitions: list[FollowerReplica]

    @property
    def log(self) -> PartitionLog:
        """The follower's log of the first partition."""
        return self.partitions[0].log

    def follow(self, index: int, record: PartitionRecord, log: PartitionLog | None = None) -> None:
        """Follow a partition as `record` specifies."""
        config = TopicConfig(durability=ConfiguredDurability(record.durability.value))
        key = TopicIdPartition(TOPIC, PartitionIndex(index))
        log = log or self.directory.open_partition(TOPIC, key.partition, config)
        life = self.link._life
        following = Following(LEADER, LEADER_EPOCH, life.broker, life.epoch, 0)
        partition = FollowerReplica(
            "flights",
            key,
            config,
            log,
            following,
            Versioned(record, Revision(1), Revision(1)),
            self.shared,
            self.fetcher.report,
        )
        self.partitions.append(partition)
        self.fetcher.add(partition)

    async def caught_up(self, end: int, index: int = 0) -> bytes:
        """Wait until a replica ends at an offset; return its bytes."""
        partition = self.partitions[index]
        await until(lambda: partition.log.end_offset == end and partition._end == end)
        return everything(partition.log)


async def start_following(
    path: Path,
    leading: Leading,
    broker: BrokerId,
    tasks: Tasks,
    storage: PosixStorage | None = None,
    bytes_per_second: int | None = None,
) -> RealFollower:
    """Follow every partition of a leader, at a limited rate if a move adds the follower."""
    telemetry = Telemetry(structlog.wrap_logger(structlog.ReturnLogger(), processors=[]))
    clock = leading.clock
    directory = LogDirectory.open(
        path / f"data-{broker}",
        cluster_id=CLUSTER,
        broker_id=broker,
        clock=clock,
        new_directory_id=f"d{broker}",
        storage=storage,
    )
    pool, syncing = DiskPool("disk", 2), Syncing(2, directory.volume)
    tasks.closing += [lambda: directory.close(False), syncing.close, pool.close]
    failures = leading.failures
    rounds = SyncRounds(
        syncing, clock, unsynced_bytes_max=1 << 28, failed=failures.append, observe_seconds=lambda _: None
    )
    shared = SharedParts(
        clock=clock,
        pool=pool,
        rounds=rounds,
        give_back_bytes=ByteBudget(1 << 28).give_back,
        queue_batches_max=1000,
        sync_interval_seconds=5.0,
        decompressed_bytes_max=1 << 26,
        directory_failed=failures.append,
        write_record=lambda leadership, write: None,
        lease_confirmed=lambda epoch: True,
        looks=NoLooks(),
    )
    link = Link(leading, PeerIncarnation(broker, leading.epochs[broker]))
    throttle = MoveThrottle(lambda: bytes_per_second, clock)
    throttle.follow_configuration()
    fetcher = ReplicaFetcher(LEADER, link, pool, directory, rounds, clock, throttle, telemetry.log)
    follower = RealFollower(leading, tasks, link, directory, fetcher, shared, [])
    for task in (rounds.run(), fetcher.run(), fetcher.run_reports()):
        tasks.spawn(task)
    for index in range(len(leading.partitions)):
        follower.follow(index, await leading.stored(index))
    return follower


def everything(log: PartitionLog) -> bytes:
    """Return every byte of a log."""
    data, at = bytearray(), log.log_start_offset
    while at < log.end_offset:
        read = log.read(at, 1 << 20, log.end_offset)
        assert read.next_offset > at, "a read makes no progress"
        data += read.data
        at = Offset(read.next_offset)
    return bytes(data)
