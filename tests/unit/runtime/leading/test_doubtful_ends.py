"""Answers from a new leader that does not know its high watermark: no answer contradicts an earlier leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.identifiers import Acks, LeaderEpoch, Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.runtime import ProduceItem
from fairlead_broker.runtime.engine.budget import AnswerBudget
from fairlead_broker.runtime.leading.fetching import Fetching
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.requests import FetchResult, FetchSpec, PartitionFetch
from fairlead_broker.runtime.transactions.decision_writes import DecisionWrites
from fairlead_broker.runtime.transactions.looks import TransactionLooks
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.telemetry import Telemetry
from leading_kit import KEYS, SECOND, THIRD, Copy, Leading, Tasks, start_leading
from log_kit import TOPIC, BatchMaker, LogBox
from refusals import refuses
from waiting import until


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    """Yield tasks that are cancelled at the end of the test."""
    tasks = Tasks()
    yield tasks
    await tasks.end()


async def fetch(leading: Leading, offset: int, wait_seconds: float = 0.0) -> FetchResult | ProblemError:
    """Fetch as a client does."""

    def find(topic_id: TopicId, index: PartitionIndex) -> LeaderReplica:
        return leading.partitions[index]

    fetching = Fetching(
        find,
        leading.shared.pool,
        leading.meters,
        bytes_max=1 << 20,
        wait_seconds_max=30.0,
        polls_max=10,
    )
    budget = AnswerBudget(1 << 20, stall_seconds_max=30.0, now=leading.clock.monotonic)
    spec = FetchSpec(
        [PartitionFetch(TOPIC, PartitionIndex(0), Offset(offset))], max_wait_seconds=wait_seconds
    )
    [answer] = await fetching.fetch(spec, budget.hold())
    return answer


@pytest.mark.parametrize("wait_seconds", [0.0, 0.05])
async def test_a_reader_beyond_the_checkpoint_is_refused_retriably(
    tmp_path: Path, tasks: Tasks, wait_seconds: float
) -> None:
    """A reader beyond the leader's old checkpoint gets a retriable refusal, with and without a long poll."""
    box, made_before = LogBox(tmp_path / "data"), BatchMaker(leader_epoch=4)
    log = box.open()
    log.begin_epoch(LeaderEpoch(4))
    made_before.fill(log, 3, records=1)
    box.stop()
    leading = await start_leading(tmp_path, tasks)
    unknown = leading.partition.known_high_watermark
    beyond = await fetch(leading, 2, wait_seconds)
    within = await fetch(leading, 0, wait_seconds)
    for follower in (leading.follower(SECOND), leading.follower(THIRD)):
        follower.copies[0] = Copy(end=Offset(3), synced=Offset(3), last_epoch=LeaderEpoch(4))
        await follower.fetch()
    later = await fetch(leading, 2)

    assert unknown is None
    assert isinstance(beyond, ProblemError)
    assert beyond.code == "offset_not_available"
    assert isinstance(within, FetchResult)
    assert not within.data
    assert isinstance(later, FetchResult)
    assert (later.high_watermark, later.next_offset) == (3, 3)


async def test_a_reader_beyond_the_log_end_is_refused_by_a_leader_in_doubt(
    tmp_path: Path, tasks: Tasks
) -> None:
    """With an expired lease, a reader beyond the log end gets `offset_not_available`, and other readers are served."""
    leading = await start_leading(tmp_path, tasks)
    for follower in (leading.follower(SECOND), leading.follower(THIRD)):
        await follower.fetch()
    sure = await fetch(leading, 0)
    ahead = await fetch(leading, 1)
    leading.confirmed[0] = False
    in_doubt = await fetch(leading, 1)
    within = await fetch(leading, 0)
    leading.confirmed[0] = True
    again = await fetch(leading, 0)

    assert isinstance(sure, FetchResult)
    assert isinstance(within, FetchResult)
    assert isinstance(again, FetchResult)
    assert isinstance(ahead, ProblemError)
    assert isinstance(in_doubt, ProblemError)
    assert (ahead.code, in_doubt.code) == ("offset_out_of_range", "offset_not_available")


async def test_unstable_records_are_counted_by_a_leader_in_doubt(tmp_path: Path, tasks: Tasks) -> None:
    """The number of records behind an open transaction is known even while no high watermark can be answered."""

    def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    leading = await start_leading(tmp_path, tasks)
    telemetry, store = Telemetry(), TransactionStore(leading.store, KEYS)
    meters = TransactionMeters(telemetry)
    writes = DecisionWrites(store, leading.clock, spawn, meters)
    looks = TransactionLooks(store, writes, leading.clock, spawn, meters, telemetry.log)
    columns = record_batch([b"one", b"two"], default_timestamp_us=leading.clock.now_us())
    batch = memoryview(encode(columns, producer=ProducerStamp(7, 0, 0, True)).to_bytes())
    item = ProduceItem(leading.partition, batch)
    call = asyncio.ensure_future(leading.producing.produce([item], acks=Acks.ALL, timeout_seconds=30.0))
    await until(lambda: leading.partition.has_open_transactions)
    looks.has_open(leading.partition)
    uncommitted = looks.unstable_records
    for follower in (leading.follower(SECOND), leading.follower(THIRD)):
        await follower.catch_up()
    await call
    sure = looks.unstable_records
    leading.confirmed[0] = False
    with refuses("offset_not_available"):
        _ = leading.partition.high_watermark
    in_doubt = looks.unstable_records

    assert (uncommitted, sure, in_doubt) == (0, 2, 2)
