"""Retention, deletion of records and configuration of a runtime with a failing disk or store."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_api.identifiers import Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.log.segments.storage import PosixFile, PosixStorage
from fairlead_broker.runtime.configs import ClusterConfigFollower
from runtime_kit import TopicClient, WatchedStorage, topic

GONE = {"segment_ms": 1, "retention_ms": 0}
"""Retention that expires every rolled segment at the next check."""


class TightStorage(PosixStorage):
    """A disk without space for a checkpoint until an index is removed, or a disk that cannot remove logs."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.stuck = False
        self.removed: list[str] = []

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file, or fail because the disk is full."""
        if self.full and create and ".fairlead" in path.parts:
            raise OSError(errno.ENOSPC, "no space, injected by the test")
        return super().open(path, write=write, create=create)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        if self.stuck and path.suffix == ".log":
            raise OSError(errno.EIO, "injected by the test")
        super().unlink(path)
        self.removed.append(path.suffix)
        if path.suffix == ".index":
            self.full = False


async def idle(runtime: Any, **config: object) -> TopicClient:
    """Return a topic of three records in a rolled segment."""
    client = await topic(runtime, **{**GONE, **config})
    await client.produce(b"a", b"b", b"c")

    # The segment is rolled a millisecond after the append.
    while client.handle().log.segment_count == 1:
        await runtime.upkeep.look_after_segments()
    return client


async def test_a_full_disk_is_freed_by_retention(
    start_runtime: Callable[..., Awaitable[Any]],
) -> None:
    """A full disk is freed by retention, whose checkpoint uses the pages of removed indexes."""
    storage = TightStorage()
    runtime = await start_runtime(storage, limits={"checkpoint_interval_seconds": 1000})
    flights = await idle(runtime, file_delete_delay_ms=0)
    storage.full = True
    await runtime.retention.check()
    await runtime.upkeep.look_after_segments()

    assert flights.handle().log_start_offset == 3
    assert ".log" in storage.removed
    assert storage.removed.index(".index") < storage.removed.index(".log")
    assert runtime.ready


async def test_what_goes_is_counted_by_its_reason(start_runtime: Callable[..., Awaitable[Any]]) -> None:
    """Removed segments and bytes are counted by reason: time, size or delete-records."""
    runtime = await start_runtime()

    def counted(reason: str) -> tuple[float | None, float | None]:
        sample = runtime.telemetry.registry.get_sample_value
        return (
            sample("fairlead_deleted_segments_total", {"reason": reason}),
            sample("fairlead_deleted_bytes_total", {"reason": reason}),
        )

    by_time = await idle(runtime)
    nbytes = by_time.handle().log.segments[0].size
    await runtime.retention.check()
    assert counted("time") == (1, nbytes)
    await idle(runtime, name="sized", retention_ms=-1, retention_bytes=0)
    await runtime.retention.check()
    assert counted("size") == (1, nbytes)
    deleted = await idle(runtime, name="deleted", retention_ms=-1)
    await runtime.delete_records(deleted.handle(), None)
    assert counted("log_start") == (1, nbytes)


async def test_a_disk_too_full_for_anything_loses_nothing(
    start_runtime: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion without a durable log start removes no file and is decided again by the next check."""
    storage = TightStorage()
    runtime = await start_runtime(storage, limits={"checkpoint_interval_seconds": 1000})
    flights = await idle(runtime, file_delete_delay_ms=0)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "unlink", lambda path: PosixStorage.unlink(storage, path))
        storage.full = True
        await runtime.retention.check()
        kept = flights.handle().log.segment_count
    storage.full = False
    await runtime.retention.check()

    assert kept == 2
    assert flights.handle().log.segment_count == 1


async def test_a_disk_that_does_not_remove_ends_writing(start_runtime: Callable[..., Awaitable[Any]]) -> None:
    """A disk that cannot remove files refuses writes, and records above the log start are still read."""
    storage = TightStorage()
    runtime = await start_runtime(storage)
    flights = await idle(runtime, file_delete_delay_ms=0)
    storage.stuck = True
    await runtime.retention.check()
    await runtime.upkeep.look_after_segments()
    ready = runtime.ready
    with pytest.raises(ProblemError) as refused:
        await flights.produce(b"d")

    assert not ready
    assert refused.value.code == "storage_failed"


async def test_records_are_synced_before_a_start_amid_them_is_durable(
    start_runtime: Callable[..., Awaitable[Any]],
) -> None:
    """Records are synced before a log start among them, so that the recovery point is never ahead of the disk."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage, limits={"sync_interval_seconds": 1000})
    flights = await topic(runtime, durability="replicated")
    opened = storage.syncs
    await flights.produce(b"a", b"b", b"c")
    before = storage.syncs - opened
    low_watermark = await runtime.delete_records(flights.handle(), Offset(2))

    assert (before, storage.syncs - opened) == (0, 1)
    assert low_watermark == flights.handle().log_start_offset == 2
    assert flights.handle().log.synced_offset == 3


async def test_deleting_on_a_failing_disk_is_refused(start_runtime: Callable[..., Awaitable[Any]]) -> None:
    """A deletion on a disk whose sync fails deletes nothing, and later writes are refused."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage, limits={"sync_interval_seconds": 1000})
    flights = await topic(runtime, durability="replicated")
    await flights.produce(b"a", b"b", b"c")
    storage.failing = True
    with pytest.raises(ProblemError) as refused:
        await runtime.delete_records(flights.handle(), Offset(2))

    assert refused.value.code == "storage_failed"
    assert flights.handle().log_start_offset == 0
    assert not runtime.ready


async def test_deleting_on_a_full_disk_deletes_nothing(start_runtime: Callable[..., Awaitable[Any]]) -> None:
    """A deletion on a full disk deletes nothing and can be retried."""
    storage = TightStorage()
    runtime = await start_runtime(storage, limits={"checkpoint_interval_seconds": 1000})
    flights = await topic(runtime)
    await flights.produce(b"a", b"b", b"c")
    storage.full = True
    with pytest.raises(ProblemError) as refused:
        await runtime.delete_records(flights.handle(), None)
    start = flights.handle().log_start_offset
    storage.full = False

    assert (refused.value.code, start) == ("disk_full", 0)
    assert await runtime.delete_records(flights.handle(), None) == 3


async def test_a_stopping_broker_deletes_and_configures_nothing(
    start_runtime: Callable[..., Awaitable[Any]],
) -> None:
    """A stopping broker refuses deletions and configuration changes."""
    runtime = await start_runtime()
    flights = await topic(runtime)
    handle = flights.handle()
    await runtime.stop_answering()
    for call in (
        runtime.delete_records(handle, None),
        runtime.alter_cluster_config({}),
        runtime.alter_broker_config(runtime.entry.incarnation.broker, {}),
    ):
        with pytest.raises(ProblemError) as refused:
            await call

        assert refused.value.code == "shutting_down"


async def test_a_brokers_own_settings_stand_between_broker_and_cluster(
    start_runtime: Callable[..., Awaitable[Any]],
) -> None:
    """A value that a call has set overrides the broker's start value, which overrides the cluster's value."""
    runtime = await start_runtime(config_values={"flush.ms": 5, "auto.create.topics.enable": True})
    await runtime.alter_cluster_config({"flush.ms": 7, "auto.create.topics.enable": False, "segment.ms": 7})
    started = runtime.broker_config(runtime.entry.incarnation.broker)
    creates = runtime.configs.auto_create_topics
    changed = await runtime.alter_broker_config(runtime.entry.incarnation.broker, {"flush.ms": 9})

    assert started["flush.ms"] == ConfigEntry("5", ConfigSource.BROKER)
    assert started["segment.ms"] == ConfigEntry("7", ConfigSource.CLUSTER)
    assert creates
    assert changed["flush.ms"] == ConfigEntry("9", ConfigSource.BROKER)
    assert (await topic(runtime)).handle().config.flush_ms == 9


async def test_following_the_cluster_goes_on_when_the_store_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change of the cluster's configuration that fails because the store is unavailable is logged and retried."""
    monkeypatch.setattr("fairlead_broker.runtime.configs.RETRY_SECONDS", 0)
    done = asyncio.Event()
    calls = 0

    class Admin:
        async def follow_cluster_config(self) -> None:
            nonlocal calls
            calls += 1
            if calls < 3:
                code = "coordination_unavailable"
                raise ProblemError(code, "away")
            done.set()

    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
    follower = ClusterConfigFollower(Admin(), log)  # type: ignore[arg-type]
    task = asyncio.create_task(follower.run())
    follower.config_changed()
    async with asyncio.timeout(5):
        await done.wait()
    task.cancel()

    assert calls == 3
