"""A real broker on a failing disk: answers to its clients, requests that still work, and its recovery."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import IO, Any

import pytest

from broker_kit import Calls, sequenced
from broker_process import BrokerProcess
from conftest import FaultyBroker
from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.identifiers import TopicId
from fairlead_broker.log import LogDirectory, PartitionLog
from fairlead_broker.runtime.hosting.role_changes import RoleChanges
from log_kit import FaultyStorage
from refusals import raises

VALUES = [b"first", b"second", b"third"]
TIME_US = 1_700_000_000_000_000


def batch(*values: bytes) -> bytes:
    """Return an unstamped batch."""
    return encode(record_batch(list(values), default_timestamp_us=TIME_US)).to_bytes()


async def store_three(faulty: FaultyBroker) -> None:
    """Create a topic with three acknowledged batches."""
    await faulty.calls.create("t")
    for value in VALUES:
        assert (await faulty.calls.send("t", batch(value))).status == 200


async def test_an_unexpected_error_of_a_partition_ends_its_leadership_alone(
    faulty: FaultyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unexpected error in one partition, the broker serves the others, and leads the failed one again."""
    await store_three(faulty)
    await faulty.calls.create("other")

    def fail(*_: object) -> int:
        message = "a fault of the broker itself"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(FaultyStorage, "take_room", fail)
        doubtful = await faulty.calls.send("t", batch(b"doubtful"))
    others = await faulty.calls.send("other", batch(b"x"))
    async with asyncio.timeout(30):
        while (await faulty.calls.send("t", batch(b"after"))).status != 200:
            pass
    values = await faulty.calls.values("t")

    assert (doubtful.code, doubtful.json["side_effect"]) == ("leader_changed", "maybe")
    assert others.status == 200
    assert [value for value in values if value != b"doubtful"] == [*VALUES, b"after"]
    assert not faulty.broker.broker.failure.done()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (PartitionLog, "roll_if_due"),
        pytest.param(LogDirectory, "write_checkpoint", marks=pytest.mark.scenario),
        pytest.param(LogDirectory, "give_up_partition", marks=pytest.mark.scenario),
        pytest.param(LogDirectory, "remove_given_up", marks=pytest.mark.scenario),
        pytest.param(LogDirectory, "partitions_of", marks=pytest.mark.scenario),
        pytest.param(LogDirectory, "open_partition", marks=pytest.mark.scenario),
        (RoleChanges, "lead"),
    ],
)
async def test_an_unexpected_error_in_work_on_many_partitions_is_contained(
    faulty: FaultyBroker, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """An unexpected error of upkeep, deletion, opening or a role change ends this round of work, but not the broker."""
    await store_three(faulty)
    await faulty.calls.create("deleted")
    met = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail(*_: object, **__: object) -> int:
        loop.call_soon_threadsafe(met.set)
        message = "a fault of the broker itself"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        await faulty.calls.call("DELETE", "/v1/topics/deleted")
        creation = asyncio.ensure_future(faulty.calls.post("/v1/topics", {"name": "other"}))
        async with asyncio.timeout(30):
            await met.wait()
        others = await faulty.calls.send("t", batch(b"x"))
    await creation

    assert others.status == 200
    assert not faulty.broker.broker.failure.done()


async def test_a_broker_starts_beside_a_log_that_fails_unexpectedly(
    faulty: FaultyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker starts even if a log cannot be opened for an unexpected reason, and refuses only its partition."""
    await store_three(faulty)
    await faulty.calls.create("other")
    topic_id = (await faulty.calls.call("GET", "/v1/topics/t")).json["topic_id"]
    await faulty.stop()
    opened = LogDirectory.open_partition

    def fail(directory: LogDirectory, topic: TopicId, *rest: Any) -> PartitionLog:
        if topic == topic_id:
            message = "a fault of the broker itself"
            raise RuntimeError(message)
        return opened(directory, topic, *rest)

    monkeypatch.setattr(LogDirectory, "open_partition", fail)
    await faulty.start()

    assert (await faulty.calls.send("t", batch(b"x"))).code == "internal"
    assert (await faulty.calls.send("other", batch(b"x"))).status == 200
    assert not faulty.broker.broker.failure.done()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_writes_without_descriptors_are_overload_that_passes(faulty: FaultyBroker, number: int) -> None:
    """While no file can be opened, writes are refused as overload; the broker stays ready and later stores again."""
    await store_three(faulty)
    await faulty.calls.create("idle")
    storage = faulty.storage
    for file in [each() for each in list(storage._open_files.values())]:
        if file is not None and file.may_close:
            file.close_descriptor()
    storage.open_error = number
    refused = [await faulty.calls.send(topic, batch(b"x")) for topic in ("t", "idle")]
    during = await faulty.ops("/readyz")
    storage.open_error = 0
    stored = [await faulty.calls.send(topic, batch(b"x")) for topic in ("t", "idle")]

    assert [(answer.code, answer.json["side_effect"]) for answer in refused] == [("overloaded", "none")] * 2
    assert (during, await faulty.ops("/readyz")) == (200, 200)
    assert [answer.status for answer in stored] == [200, 200]
    assert await faulty.calls.values("t") == [*VALUES, b"x"]


@pytest.mark.parametrize("fault", ["sync", "write"])
async def test_the_first_failed_sync_or_write_ends_all_writes_until_a_restart(
    faulty: FaultyBroker, fault: str
) -> None:
    """A broker whose sync or write failed refuses writes until a restart, serves reads, and is not ready."""
    await store_three(faulty)
    assert await faulty.ops("/readyz") == 200
    if fault == "sync":
        faulty.storage.sync_error = errno.EIO
    else:
        faulty.storage.room_bytes, faulty.storage.write_error = 100, errno.EIO
    first = await faulty.calls.send("t", batch(b"doubtful"))
    syncs = len(faulty.storage.syncs)
    faulty.storage.sync_error, faulty.storage.room_bytes = 0, None
    second = await faulty.calls.send("t", batch(b"refused"))

    assert (first.status, first.code, first.json["side_effect"]) == (500, "storage_failed", "maybe")
    assert (second.status, second.code, second.json["side_effect"]) == (500, "storage_failed", "none")
    assert await faulty.calls.values("t") == VALUES
    assert (await faulty.ops("/readyz"), await faulty.ops("/healthz")) == (503, 200)
    assert not [path for path in faulty.storage.syncs[syncs:] if path.suffix == ".log"], (
        "a sync was tried again"
    )

    await faulty.stop()
    await faulty.start()
    assert await faulty.ops("/readyz") == 200
    assert (await faulty.calls.values("t"))[:3] == VALUES
    assert (await faulty.calls.send("t", batch(b"after"))).status == 200
    assert (await faulty.calls.values("t"))[-1] == b"after"


async def test_one_topics_failed_sync_ends_the_whole_directory(faulty: FaultyBroker) -> None:
    """A failed sync of one topic stops writes to the whole directory, because the state of the disk is unknown."""
    await store_three(faulty)
    await faulty.calls.create("other")
    faulty.storage.sync_error = errno.EIO
    await faulty.calls.send("t", batch(b"doubtful"))
    faulty.storage.sync_error = 0

    assert (await faulty.calls.send("other", batch(b"refused"))).code == "storage_failed"
    assert (await faulty.calls.post("/v1/topics", {"name": "third"})).status in {201, 500, 503}
    assert (await faulty.calls.send("t", batch(b"refused"), query="?acks=0")).code == "storage_failed"


async def test_a_failed_read_is_answered_and_does_not_end_writes(faulty: FaultyBroker) -> None:
    """A fetch that reads a bad sector is answered with the failure, and the next fetch reads again."""
    await store_three(faulty)
    faulty.storage.read_error = errno.EIO
    answer = await faulty.calls.call("GET", "/v1/topics/t/partitions/0/records?offset=1")

    assert (answer.status, answer.code) == (500, "storage_failed")
    assert "cannot read" in answer.json["detail"]
    assert (await faulty.calls.send("t", batch(b"fourth"))).status == 200
    assert await faulty.ops("/readyz") == 200

    faulty.storage.read_error = 0
    assert await faulty.calls.values("t") == [*VALUES, b"fourth"]


async def test_an_idempotent_batch_in_doubt_is_there_once_after_a_restart(faulty: FaultyBroker) -> None:
    """An idempotent batch whose sync failed is stored once when it is sent again after a restart."""
    await store_three(faulty)
    doubtful = sequenced(0, [b"doubtful"])
    faulty.storage.sync_error = errno.EIO
    assert (await faulty.calls.send("t", doubtful)).json["side_effect"] == "maybe"
    await faulty.stop()
    await faulty.start()

    assert (await faulty.calls.send("t", doubtful)).status == 200
    assert (await faulty.calls.values("t")).count(b"doubtful") == 1


@pytest.mark.slow
async def test_a_full_disk_refuses_writes_serves_reads_and_recovers_by_itself(
    small_volume: Path, tmp_path: Path
) -> None:
    """A full disk refuses writes with 507, serves reads, and accepts writes without a restart when space is freed."""
    # Bytecode would fill half of the volume.
    elsewhere = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    broker = BrokerProcess(small_volume / "data", errors=tmp_path / "errors", environment=elsewhere)
    await asyncio.to_thread(broker.start)
    try:
        async with Calls(broker.url) as calls:
            await calls.create("t")
            stored = await fill(calls)
            ballast = small_volume / "ballast"
            for _ in range(3):
                eat(ballast)
                stored += await fill(calls)
                assert await calls.values("t") == stored
                ballast.unlink()
                value = f"freed {len(stored)}".encode()
                answer = await calls.send("t", batch(value))

                assert answer.status == 200, answer
                stored.append(value)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        async with Calls(broker.url) as calls:
            assert await calls.values("t") == stored
    finally:
        broker.kill()


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_a_broker_starts_on_a_full_disk(small_volume: Path, tmp_path: Path, end: str) -> None:
    """A broker that ended on a full disk starts, serves reads, and accepts writes after records are deleted.

    The broker's log is a file on the same disk, and has no space either.
    """
    elsewhere = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    log = small_volume / "log"
    broker = BrokerProcess(small_volume / "data", errors=log, environment=elsewhere)
    await asyncio.to_thread(broker.start)
    try:
        async with Calls(broker.url) as calls:
            await calls.create("t", segment_bytes=1 << 20)
            stored = await fill(calls)
            for _ in range(3):
                eat(small_volume / "ballast")
                stored += await fill(calls)
        # The last block of the log has room for a few lines.
        eat(log)
        code = 0
        if end == "killed":
            await asyncio.to_thread(broker.kill)
        else:
            code = await asyncio.to_thread(broker.stop)
        eat(small_volume / "ballast")
        await asyncio.to_thread(broker.start)
        async with Calls(broker.url) as calls:
            values = await calls.values("t")
            refused = await calls.send("t", batch(b"refused"))
            deleted = await calls.post(
                "/v1/topics/t/partitions/0:delete-records", {"offset": len(stored) - 1}
            )
            answer = await calls.send("t", batch(b"after"))
    finally:
        broker.kill()

    assert code == 0
    assert values == stored
    assert (refused.status, refused.code) == (507, "disk_full")
    assert deleted.status == 200, deleted
    assert answer.status == 200, answer


async def fill(calls: Calls) -> list[bytes]:
    """Produce until the disk is full, but at most 15 MB; return the acknowledged values."""
    stored = []
    for number in range(250):
        value = b"%d " % number + b"x" * 60_000
        answer = await calls.send("t", batch(value))
        if answer.status != 200:
            assert (answer.status, answer.code) == (507, "disk_full"), answer
            assert answer.json["side_effect"] == "none"
            assert answer.json["retryable"]
            break
        stored.append(value)
    return stored


def eat(path: Path) -> None:
    """Write a file until its file system is full."""
    with path.open("ab", buffering=0) as file:
        for nbytes in (1 << 20, 4096, 1):
            with raises(OSError, errno=errno.ENOSPC):
                write_for_ever(file, nbytes)


def write_for_ever(file: IO[bytes], nbytes: int) -> None:
    """Write until a write fails."""
    while True:
        file.write(b"x" * nbytes)


@pytest.mark.scenario
@pytest.mark.slow
def test_a_directory_of_another_broker_or_cluster_is_refused(tmp_path: Path) -> None:
    """A broker on the directory of another broker or cluster does not start, and its message names the remedy."""
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    broker.stop()
    other = BrokerProcess(tmp_path / "data", environment={"FAIRLEAD_ID": "7"}, errors=tmp_path / "refused")

    with raises(RuntimeError, 0, 7):
        other.start()

    (tmp_path / "data" / ".fairlead" / "coordination.sqlite").unlink()
    other = BrokerProcess(tmp_path / "data", errors=tmp_path / "refused-again")
    with pytest.raises(RuntimeError):
        other.start()


@pytest.mark.slow
async def test_after_an_unclean_stop_every_acknowledged_record_is_stored(tmp_path: Path) -> None:
    """A killed broker restarts without intervention, with every acknowledged record."""
    broker = BrokerProcess(tmp_path / "data")
    await asyncio.to_thread(broker.start)
    async with Calls(broker.url) as calls:
        await calls.create("t")
        for value in VALUES:
            assert (await calls.send("t", batch(value))).status == 200
    broker.kill()
    await asyncio.to_thread(broker.start)
    async with Calls(broker.url) as calls:
        found = await calls.values("t")
    broker.kill()

    assert found == VALUES
