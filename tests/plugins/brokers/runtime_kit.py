"""Requests to a broker runtime without HTTP, as the server makes them, for tests of the runtime and its callers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
from pathlib import Path
from uuid import UUID

from fairlead_api.batch.batches import encode
from fairlead_api.batch.columns import record_batch
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import Acks, Offset, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import SystemClock
from fairlead_broker.log.segments.storage import PosixFile, PosixStorage, PosixVolume
from fairlead_broker.runtime import (
    AppendResult,
    Broker,
    FetchResult,
    FetchSpec,
    PartitionFetch,
    ProduceItem,
)
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

_numbers = itertools.count(1)


def new_id() -> str:
    """Return a version 4 UUID that is unique but not random."""
    return str(UUID(int=next(_numbers), version=4))


class TopicClient:
    """Produces to and fetches from one topic of a runtime, like the server."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.topic_id = broker.views.by_name(name).topic_id

    async def produce(
        self, *values: bytes, partition: int = 0, acks: Acks = Acks.ALL, timeout_seconds: float = 10.0
    ) -> AppendResult:
        """Append the values as one batch; raise an exception if the batch is refused."""
        [answer] = await self.produce_batch(
            batch(*values), partition, acks=acks, timeout_seconds=timeout_seconds
        )
        if isinstance(answer, ProblemError):
            raise answer
        return answer

    async def produce_batch(
        self, data: bytes, partition: int = 0, *, acks: Acks = Acks.ALL, timeout_seconds: float = 10.0
    ) -> list[AppendResult | ProblemError]:
        """Append the given bytes."""
        items = [ProduceItem(self.handle(partition), memoryview(data))]
        return await self.broker.producing.produce(items, acks=acks, timeout_seconds=timeout_seconds)

    def handle(self, partition: int = 0) -> LeaderReplica:
        """Return the leader replica of a partition."""
        return self.broker.replicas.find(self.topic_id, PartitionIndex(partition))

    def spec(self, offset: int = 0, partition: int = 0, **fields: object) -> FetchSpec:
        """Return a fetch of one partition; fields of the partition and of the request are given by name."""
        of_partition = {"bytes_max", "leader_epoch", "last_epoch"}
        fetch = PartitionFetch(
            self.topic_id,
            PartitionIndex(partition),
            Offset(offset),
            **{name: value for name, value in fields.items() if name in of_partition},  # type: ignore[arg-type]
        )
        call = {"max_wait_seconds": 0.0, **{n: v for n, v in fields.items() if n not in of_partition}}
        return FetchSpec([fetch], **call)  # type: ignore[arg-type]

    async def fetch(self, offset: int = 0, partition: int = 0, **fields: object) -> FetchResult:
        """Fetch from one partition; raise an exception if the fetch is refused."""
        [answer] = await self.fetch_all(self.spec(offset, partition, **fields))
        if isinstance(answer, ProblemError):
            raise answer
        return answer

    async def fetch_all(
        self, spec: FetchSpec, *, disconnected: asyncio.Future[None] | None = None
    ) -> list[FetchResult | ProblemError]:
        """Fetch from several partitions; the answer's bytes are counted until the method returns."""
        held = self.broker.answers.hold()
        try:
            return await self.broker.fetching.fetch(spec, held, disconnected=disconnected)
        finally:
            held.release()


async def topic(runtime: Broker, name: str = "flights", partitions: int = 1, **config: object) -> TopicClient:
    """Create a topic; underscores in configuration keys replace dots."""
    request = CreateTopicRequest(
        name=name,
        partitions=partitions,
        config={key.replace("_", "."): value for key, value in config.items()},  # type: ignore[misc]
    )
    await runtime.create_topic(request)
    return TopicClient(runtime, name)


def batch(*values: bytes) -> bytes:
    """Return an encoded batch of these values."""
    now_us = SystemClock().now_us()
    return encode(record_batch(list(values), default_timestamp_us=now_us)).to_bytes()


class WatchedStorage(PosixStorage):
    """The real disk, with syncs of log files counted, delayed or failed."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        """Number of completed syncs of log files."""
        self.may_sync = threading.Event()
        """Event that permits syncs."""
        self.may_sync.set()
        self.failing = False
        """Whether further syncs fail."""
        self.volume_syncs = 0
        """Number of syncs of the whole volume."""
        self.waiting = threading.Event()
        """Event that is set when a sync waits or has run."""

    def hold(self) -> None:
        """Block further syncs; `waiting` is set by the next sync."""
        self.waiting.clear()
        self.may_sync.clear()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file; the syncs of a log file are watched."""
        file = super().open(path, write=write, create=create)
        return WatchedFile(file, self) if path.suffix == ".log" else file

    def open_volume(self, path: Path) -> PosixVolume:
        """Open a volume whose syncs are counted."""
        return WatchedVolume(path, self)


class WatchedVolume(PosixVolume):
    """File system of a data directory."""

    def __init__(self, path: Path, storage: WatchedStorage) -> None:
        super().__init__(storage, storage._open(path, os.O_RDONLY | os.O_DIRECTORY))
        self._watched = storage

    def sync(self) -> None:
        """Sync the whole volume."""
        super().sync()
        self._watched.volume_syncs += 1


class WatchedFile(PosixFile):
    """A log file."""

    def __init__(self, file: PosixFile, storage: WatchedStorage) -> None:
        super().__init__(storage, file._path, file._use(), write=True)
        self._watched = storage

    def sync(self) -> None:
        """Sync when the storage permits it."""
        self._watched.waiting.set()
        assert self._watched.may_sync.wait(30), "the test did not permit the sync"
        if self._watched.failing:
            raise OSError(errno.EIO, "ordered by the test")
        super().sync()
        self._watched.syncs += 1
