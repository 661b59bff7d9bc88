"""Transactions in partitions that a broker leads: markers, the last stable offset, and fetches of committed records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.batch.header import iterate_headers
from fairlead_api.identifiers import Acks, ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import SystemClock
from fairlead_broker.runtime import AppendResult, Broker, FetchResult
from fairlead_broker.runtime.leading import fetching
from fairlead_broker.runtime.requests import TransactionEnd
from fairlead_broker.transactions import looking
from refusals import refuses
from runtime_kit import TopicClient, topic
from waiting import until

MakeTopic = Callable[..., Awaitable[TopicClient]]
StartRuntime = Callable[..., Awaitable[Broker]]


@pytest.fixture(autouse=True)
def without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the leader's reads of producer records, because the producers of these tests have no records."""
    monkeypatch.setattr(looking, "FIRST_SECONDS", 1e9)


def transactional(producer_id: int, epoch: int = 0, sequence: int = 0, value_bytes: int = 10) -> bytes:
    """Return a batch of one record of a transaction."""
    columns = record_batch([b"x" * value_bytes], default_timestamp_us=SystemClock().now_us())
    return encode(columns, producer=ProducerStamp(producer_id, epoch, sequence, True)).to_bytes()


async def write(flights: TopicClient, *stamp: int) -> int:
    """Append a batch of a transaction and return its offset; raise an exception if the batch is refused."""
    [answer] = await flights.produce_batch(transactional(*stamp))
    if isinstance(answer, ProblemError):
        raise answer
    return answer.base_offset


async def end(
    flights: TopicClient, producer_id: int, epoch: int = 0, kind: MarkerKind = MarkerKind.COMMIT
) -> None:
    """Append the marker of a decided transaction."""
    decided = TransactionEnd(ProducerId(producer_id), ProducerEpoch(epoch), kind, TimestampUs(5))
    await flights.handle().end_transaction(decided, 10.0)


def offsets(result: FetchResult) -> list[int]:
    """Return the base offsets of a result's batches, without markers."""
    return [
        header.base_offset
        for part in result.data
        for _, header in iterate_headers(part)
        if not header.is_control
    ]


async def test_committed_readers_stop_before_an_open_transaction(make_topic: MakeTopic) -> None:
    """A reader of committed records gets no record from the first of an open transaction on until that one ends."""
    flights = await make_topic()
    first = await write(flights, 7)
    await flights.produce(b"plain")
    before = await flights.fetch(committed=True)
    all_records = await flights.fetch()
    await end(flights, 7)
    after = await flights.fetch(committed=True)

    assert (offsets(before), before.last_stable_offset, before.high_watermark) == ([], first, 2)
    assert (offsets(all_records), all_records.last_stable_offset) == ([0, 1], first)
    assert (offsets(after), after.last_stable_offset, flights.handle().last_stable_offset) == ([0, 1], 3, 3)


async def test_committed_readers_pass_aborted_records(make_topic: MakeTopic) -> None:
    """A committed reader skips aborted records in one call, even if an entire read contains no other records."""
    flights = await make_topic()
    await write(flights, 7)
    await write(flights, 7, 0, 1)
    await end(flights, 7, kind=MarkerKind.ABORT)
    kept = await flights.produce(b"kept")
    found = await flights.fetch(committed=True, bytes_max=1)
    last = await flights.fetch(found.next_offset, committed=True)

    assert offsets(found) == []
    assert found.next_offset == kept.base_offset
    assert offsets(last) == [kept.base_offset]


async def test_a_read_gives_up_after_many_aborted_bytes(
    make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call reads a limited number of aborted bytes, and answers with the offset at which the reader continues."""
    monkeypatch.setattr(fetching, "SKIPPED_BYTES_MAX", 1000)
    monkeypatch.setattr(fetching, "CACHED_READ_BYTES", 600)
    flights = await make_topic()
    for sequence in range(5):
        await write(flights, 7, 0, sequence, 500)
    await end(flights, 7, kind=MarkerKind.ABORT)
    found = await flights.fetch(committed=True)

    assert offsets(found) == []
    assert 0 < found.next_offset < 5


async def test_long_polls_of_committed_readers_wait_for_the_stable_offset(
    runtime: Broker, make_topic: MakeTopic
) -> None:
    """A long poll of a committed reader is answered by the marker of a transaction, not by its records."""
    flights = await make_topic()
    first = await write(flights, 7)
    polling = asyncio.ensure_future(flights.fetch(first, committed=True, max_wait_seconds=30.0))
    await until(lambda: runtime.fetching.waiting == 1)
    await write(flights, 7, 0, 1)
    still = runtime.fetching.waiting
    await end(flights, 7)
    found = await polling

    assert still == 1
    assert offsets(found) == [0, 1]


async def test_late_batches_of_an_ended_transaction_are_refused(make_topic: MakeTopic) -> None:
    """A batch after the marker of its transaction is fenced, and the next epoch begins at sequence 0.

    A repeated end of a transaction changes nothing.
    """
    flights = await make_topic()
    await write(flights, 7)
    await end(flights, 7)
    await end(flights, 7)
    await end(flights, 7, kind=MarkerKind.ABORT)
    with refuses("producer_fenced"):
        await write(flights, 7, 0, 1)
    following = await write(flights, 7, 1)

    assert following == 2


async def test_a_later_epoch_waits_for_the_end_of_the_open_one(make_topic: MakeTopic) -> None:
    """A batch of a later epoch is held until the marker of the open transaction is appended."""
    flights = await make_topic()
    await write(flights, 7)
    later = asyncio.ensure_future(write(flights, 7, 1))
    await until(lambda: flights.handle().held_batches == 1)
    await end(flights, 7, kind=MarkerKind.ABORT)
    stored = await later
    await end(flights, 7, 1)
    found = await flights.fetch(committed=True)

    assert stored == 2
    assert offsets(found) == [2]


async def test_the_leader_numbers_batches_without_a_sequence(make_topic: MakeTopic) -> None:
    """Batches that a broker encoded without a sequence get the next sequences of the transaction."""
    flights = await make_topic()
    for _ in range(3):
        await write(flights, 7, 0, -1)
    found = await flights.fetch()
    sequences = [header.base_sequence for part in found.data for _, header in iterate_headers(part)]

    assert sequences == [0, 1, 2]


async def test_parallel_batches_without_a_sequence_wait_for_one_marker(make_topic: MakeTopic) -> None:
    """Batches without a sequence that wait for the end of the open transaction are all stored, with their sequences."""
    flights = await make_topic()
    await write(flights, 7)
    later = [asyncio.ensure_future(flights.produce_batch(transactional(7, 1, -1))) for _ in range(3)]
    await until(lambda: flights.handle().held_batches == 3)
    await end(flights, 7)
    answers = [answer for each in later for answer in await each]
    await end(flights, 7, 1)
    found = await flights.fetch(committed=True)
    headers = [header for part in found.data for _, header in iterate_headers(part) if not header.is_control]

    assert [isinstance(answer, AppendResult) and answer.base_offset for answer in answers] == [2, 3, 4]
    assert [header.base_offset for header in headers] == [0, 2, 3, 4]
    assert [header.base_sequence for header in headers] == [0, 0, 1, 2]


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.NONE])
async def test_transactions_need_acks_all(make_topic: MakeTopic, acks: Acks) -> None:
    """Transactional batches with acks other than all are refused."""
    flights = await make_topic()
    [answer] = await flights.produce_batch(transactional(7), acks=acks)

    assert isinstance(answer, ProblemError)
    assert answer.code == "unknown_option"


async def test_a_restart_keeps_open_transactions(start_runtime: StartRuntime) -> None:
    """After a restart, an open transaction still limits the last stable offset, and can be ended."""
    first = await start_runtime()
    flights = await topic(first)
    await write(flights, 7)
    await first.stop()
    second = await start_runtime()
    again = TopicClient(second, "flights")
    before = again.handle().last_stable_offset
    await end(again, 7)

    assert before == 0
    assert again.handle().last_stable_offset == 2
