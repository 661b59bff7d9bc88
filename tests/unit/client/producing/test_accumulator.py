"""The accumulator: which batches may be sent at a given time, and the next deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fairlead.errors import ClosedError
from fairlead.producing.accumulator import Accumulator
from fairlead.producing.fitting import BatchSizes
from fairlead.producing.pending_batch import (
    UNKNOWN_PLACE,
    ColumnsBatch,
    PartitionQueue,
    ProducerIdentity,
    RecordsBatch,
)
from fairlead.settings import ProducerSettings
from fairlead_api.batch.batches import ProducerStamp, record_batch
from fairlead_api.batch.header import Codec

if TYPE_CHECKING:
    import pyarrow as pa

Append = Callable[..., RecordsBatch]


def _columns(values: list[bytes | None]) -> pa.RecordBatch:
    return record_batch(values, default_timestamp_us=1)


def test_an_open_batch_is_ready_when_it_has_lingered(accumulator: Accumulator, append: Append) -> None:
    """An open batch is sent after its linger time."""
    queue = PartitionQueue("flights", 0)
    append(queue, now=1.0)

    assert accumulator.drain(1.004) == []
    assert accumulator.next_deadline(1.004) == 1.005
    assert accumulator.drain(1.005) == [queue]
    assert queue.open is None


def test_a_full_batch_is_ready_at_once(accumulator: Accumulator, append: Append) -> None:
    """A full batch is sent immediately, when the next batch is opened."""
    queue = PartitionQueue("flights", 0)
    full = append(queue, b"x" * 90, now=1.0)
    accumulator.open_batch(queue, 1.0)

    assert accumulator.drain(1.0) == [queue]
    assert accumulator.start(queue) is full


def test_a_partition_has_one_unfinished_request(accumulator: Accumulator, append: Append) -> None:
    """Without sequences, a partition has one unfinished request, because HTTP/2 streams may overtake each other."""
    queue = PartitionQueue("flights", 0)
    first = append(queue)
    queue.close_open()
    second = append(queue)
    queue.close_open()
    accumulator.start(queue)

    assert accumulator.drain(9.0) == []
    accumulator.finish(first)
    assert accumulator.drain(9.0) == [queue]
    assert accumulator.start(queue) is second


def test_partitions_do_not_wait_for_each_other(accumulator: Accumulator, append: Append) -> None:
    """Partitions are sent independently of each other."""
    queues = [PartitionQueue("flights", index) for index in range(3)]
    for queue in queues:
        append(queue)
    accumulator.close_all()
    accumulator.start(queues[0])

    assert accumulator.drain(0.0) == queues[1:]


def test_a_retried_batch_goes_first_and_waits_for_its_pause(accumulator: Accumulator, append: Append) -> None:
    """A refused batch is sent again after its back-off and before later batches, which preserves the order."""
    queue = PartitionQueue("flights", 0)
    first = append(queue)
    queue.close_open()
    append(queue)
    queue.close_open()
    accumulator.start(queue)
    accumulator.retry(first, at=2.0)

    assert accumulator.drain(1.9) == []
    assert accumulator.next_deadline(1.9) == 2.0
    assert accumulator.drain(2.0) == [queue]
    assert accumulator.start(queue) is first
    assert first.attempts == 2


def test_flushing_closes_everything_without_linger(accumulator: Accumulator, append: Append) -> None:
    """A flush closes all open batches, whose linger times are then ignored."""
    queues = [PartitionQueue("flights", index) for index in range(2)]
    for queue in queues:
        append(queue, now=5.0)
    accumulator.close_all()

    assert accumulator.drain(5.0) == queues


def test_a_busy_partition_does_not_starve_the_others(accumulator: Accumulator, append: Append) -> None:
    """A partition that has just been served is queued after the waiting partitions."""
    busy, quiet = PartitionQueue("flights", 0), PartitionQueue("flights", 1)
    first = append(busy)
    busy.close_open()
    append(busy)
    append(quiet)
    accumulator.close_all()
    accumulator.start(busy)
    accumulator.finish(first)

    assert accumulator.drain(0.0) == [quiet, busy]


def test_columns_come_after_the_records_sent_before_them(accumulator: Accumulator, append: Append) -> None:
    """A table closes the open batch of its partition, which preserves the order of sending."""
    queue = PartitionQueue("flights", 0)
    records = append(queue)
    columns = accumulator.append_columns(queue, _columns([b"a", b"b"]), 0.0)

    assert list(queue.closed) == [records, columns]
    assert columns.record_count == 2


def test_room_comes_back_with_the_outcome(accumulator: Accumulator, append: Append) -> None:
    """The payload of a batch counts against the buffer until the batch is acknowledged or failed."""
    queue = PartitionQueue("flights", 0)
    before = accumulator.room
    batch = append(queue, b"x" * 60)
    accumulator.close_all()
    accumulator.start(queue)

    assert accumulator.room == before - 60
    accumulator.finish(batch)
    assert accumulator.room == before
    assert accumulator.unfinished == ()


def test_batches_expire_in_the_queue_but_not_in_flight(accumulator: Accumulator, append: Append) -> None:
    """A batch in the queue expires at its delivery timeout; a batch in flight waits for its answer."""
    queue = PartitionQueue("flights", 0)
    flying = append(queue, now=0.0)
    queue.close_open()
    waiting = append(queue, now=1.0)
    accumulator.start(flying.queue)

    assert accumulator.expire(10.9) == []
    assert accumulator.expire(11.0) == [waiting]
    assert accumulator.unfinished == (flying, waiting)
    assert queue.in_flight == [flying]


def test_the_next_deadline_is_the_expiry_of_a_queued_batch(accumulator: Accumulator, append: Append) -> None:
    """While a batch waits for another batch in flight, the next deadline is the delivery timeout."""
    queue = PartitionQueue("flights", 0)
    append(queue, now=0.0)
    accumulator.close_all()
    accumulator.start(queue)
    append(queue, now=1.0)

    assert accumulator.next_deadline(1.0) == 11.0


def test_an_idle_accumulator_has_no_deadline(accumulator: Accumulator, append: Append) -> None:
    """An accumulator without batches has no deadline."""
    queue = PartitionQueue("flights", 0)
    batch = append(queue)
    accumulator.close_all()
    accumulator.start(queue)
    accumulator.finish(batch)

    assert accumulator.next_deadline(0.0) is None
    assert accumulator.drain(99.0) == []


def test_only_batches_behind_a_request_are_encoded_ahead(accumulator: Accumulator, append: Append) -> None:
    """A batch is encoded ahead only while its partition has a request in flight."""
    queue = PartitionQueue("flights", 0)
    append(queue)
    accumulator.close_all()

    assert accumulator.encodable() is None
    accumulator.start(queue)
    behind = append(queue)
    assert accumulator.encodable() is None
    accumulator.close_all()
    assert accumulator.encodable() is behind


def test_a_finished_batch_lets_its_payload_go_and_keeps_its_times(
    accumulator: Accumulator, append: Append
) -> None:
    """A finished batch frees its payload but keeps its timestamps, because deliveries may be kept for a long time."""
    batch = append(PartitionQueue("flights", 0))
    batch.acknowledge(UNKNOWN_PLACE)

    assert batch.values == []
    assert batch.timestamp_us(0) == 1_000_001
    assert batch.record_count == 1


def test_a_failure_is_seen_when_every_delivery_raised_it(accumulator: Accumulator, append: Append) -> None:
    """The failure of a batch counts as reported once every delivery of the batch has raised it."""
    queue = PartitionQueue("flights", 0)
    append(queue)
    batch = append(queue)
    batch.fail(ClosedError("producer"))
    batch.failures_seen.add(0)
    batch.failures_seen.add(0)

    assert not batch.failure_is_seen
    batch.failures_seen.add(1)
    assert batch.failure_is_seen


def test_headers_stand_at_their_records(accumulator: Accumulator, append: Append) -> None:
    """The headers of a batch are stored by record position, and are null for records without headers."""
    queue = PartitionQueue("flights", 0)
    append(queue)
    batch = append(queue)
    batch.headers[1] = (("trace", b"1"), ("trace", b"2"))

    assert batch.columns().column("headers").to_pylist() == [
        None,
        [{"key": "trace", "value": b"1"}, {"key": "trace", "value": b"2"}],
    ]


def test_a_back_off_ends_with_another_leader(accumulator: Accumulator, append: Append) -> None:
    """The back-off of a refused batch ends early only if another leader is known."""
    queue = PartitionQueue("flights", 0)
    batch = append(queue, now=1.0)
    queue.close_open()
    accumulator.start(queue)
    accumulator.retry(batch, at=9.0)
    queue.left_by = "http://old"
    leaders: list[str | None] = [None, "http://old", "http://new"]
    ready = []
    for leader in leaders:
        accumulator.hurry(lambda topic, partition, leader=leader: leader, 2.0)
        ready.append((accumulator.seeks_leaders(), accumulator.drain(2.0)))

    assert ready == [(True, []), (True, []), (False, [queue])]


LIMIT = 10_000
"""Size limit of the topic. The size of a batch that is not encoded is unknown, so the batch is split in half."""


def _six_records(accumulator: Accumulator, append: Append, queue: PartitionQueue) -> RecordsBatch:
    """Append a batch of six records, some with a key or headers, and begin to send the batch."""
    for index in range(6):
        batch = append(queue, b"%010d" % index)
        batch.describe(index, b"key" if index == 1 else None, [("name", b"head")] if index == 4 else None)
    queue.close_open()
    accumulator.start(queue)
    return batch


def test_a_batch_that_is_too_large_is_sent_again_in_pieces(accumulator: Accumulator, append: Append) -> None:
    """A batch that is too large is sent again in pieces, in order, and finishing the pieces frees its buffer space."""
    queue, room = PartitionQueue("flights", 0), accumulator.room
    batch = _six_records(accumulator, append, queue)
    behind = append(queue)

    assert accumulator.cut(batch, LIMIT)
    pieces = [piece for piece in queue.closed if isinstance(piece, RecordsBatch)]
    assert pieces[0] is batch
    assert [value for piece in pieces for value in piece.values] == [b"%010d" % index for index in range(6)]
    assert [key for piece in pieces for key in piece.columns().column("key").to_pylist()] == [
        None, b"key", None, None, None, None,
    ]  # fmt: skip
    heads = [head for piece in pieces for head in piece.columns().column("headers").to_pylist()]
    assert [head is not None for head in heads] == [False, False, False, False, True, False]
    assert pieces[0].timestamp_us(0) == 1_000_001
    numbers = [piece.number for piece in (*pieces, behind)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert (accumulator.drain(0.0), [piece.attempts for piece in pieces]) == ([queue], [0] * len(pieces))
    accumulator.close_all()
    for piece in tuple(queue.closed):
        accumulator.give_up(piece, ClosedError("producer"))
    assert (accumulator.room, accumulator.unfinished) == (room, ())


def test_one_record_and_what_nothing_fits_are_not_cut(accumulator: Accumulator, append: Append) -> None:
    """A batch of one record, or a batch over a limit that no batch can meet, is not split."""
    one, six = PartitionQueue("flights", 0), PartitionQueue("flights", 1)
    single = append(one, b"x" * 50)
    one.close_open()
    accumulator.start(one)
    batch = _six_records(accumulator, append, six)

    assert not accumulator.cut(single, LIMIT)
    assert not accumulator.cut(batch, 100)
    assert (one.in_flight, six.in_flight) == ([single], [batch])


def test_batches_behind_a_refused_one_are_cut_before_they_are_sent(
    accumulator: Accumulator, append: Append
) -> None:
    """Later batches of all partitions of a topic are split to the size learned from a refusal, until it is reset."""
    sizes = BatchSizes(100)
    queue, other = PartitionQueue("flights", 0, sizes), PartitionQueue("flights", 1, sizes)
    accumulator.cut(_six_records(accumulator, append, queue), LIMIT)
    assert sizes.batch_bytes == sizes.fitting_bytes == 30

    first = _six_records(accumulator, append, other)
    assert first.record_count < 6
    assert sum(piece.record_count for piece in (first, *other.closed)) == 6
    sizes.forget()
    assert sizes.batch_bytes == 100
    third = PartitionQueue("flights", 2, sizes)
    assert _six_records(accumulator, append, third).record_count == 6


@pytest.fixture
def idempotent(settings: ProducerSettings) -> Accumulator:
    """Return an accumulator whose batches have sequences."""
    accumulator = Accumulator(replace(settings, idempotence=True))
    accumulator.identity = ProducerIdentity(7, 0)
    return accumulator


def _tables(accumulator: Accumulator, queue: PartitionQueue, count: int) -> list[ColumnsBatch]:
    """Append batches of two records each, and begin to send them."""
    batches = [accumulator.append_columns(queue, _columns([b"a", b"b"]), 0.0) for _ in range(count)]
    for _ in batches:
        accumulator.start(queue)
    return batches


def test_pieces_have_the_sequences_of_their_records(idempotent: Accumulator) -> None:
    """Pieces of a batch keep the sequences of their records, so that later batches in flight remain valid."""
    queue = PartitionQueue("flights", 0)
    first, second = _tables(idempotent, queue, 2)
    idempotent.cut(first, LIMIT)

    assert [batch.stamp for batch in (*queue.closed, second)] == [
        ProducerStamp(7, 0, 0), ProducerStamp(7, 0, 1), ProducerStamp(7, 0, 2),
    ]  # fmt: skip
    assert [batch.number for batch in queue.in_flight] == [3]


def test_a_piece_waits_where_it_would_make_the_broker_forget_those_before_it(idempotent: Accumulator) -> None:
    """A piece waits for earlier batches, because the broker recognises retries of only the last five batches."""
    queue = PartitionQueue("flights", 0)
    first, *behind = _tables(idempotent, queue, 5)
    idempotent.cut(first, LIMIT)
    assert idempotent.start(queue) is first
    idempotent.retry(behind[0], 0.0)

    assert idempotent.drain(0.0) == []
    idempotent.finish(first)
    assert idempotent.drain(0.0) == [queue]


def test_nothing_is_sent_behind_a_record_that_will_be_refused(idempotent: Accumulator) -> None:
    """No batch is sent after a piece that exceeds the size limit until the piece has failed."""
    queue = PartitionQueue("flights", 0)
    [batch] = _tables(idempotent, queue, 1)
    idempotent.cut(batch, LIMIT)
    queue.sizes.fit(batch.nbytes - 1)
    last = queue.closed[1]
    assert idempotent.start(queue) is batch

    assert idempotent.drain(0.0) == []
    idempotent.give_up(batch, ClosedError("producer"))
    assert idempotent.start(queue) is last
    assert last.stamp == ProducerStamp(7, 0, 0)


def test_a_batch_that_seems_to_fit_is_cut_in_the_middle(accumulator: Accumulator, append: Append) -> None:
    """A refused batch that seems to fit is split in half, because otherwise it would be refused forever."""
    records = _six_records(accumulator, append, PartitionQueue("flights", 0))
    table = accumulator.append_columns(PartitionQueue("flights", 1), _columns([b"x"] * 6), 0.0)

    assert [[piece.record_count for piece in batch.cut(LIMIT)] for batch in (records, table)] == [[3], [3]]
    assert (records.record_count, table.record_count) == (3, 3)


@pytest.mark.parametrize(("size", "limit"), [(8, 1300), (8, 2000), (0, 4000), (30, 4000)])
def test_pieces_of_a_table_weigh_what_they_hold(idempotent: Accumulator, size: int, limit: int) -> None:
    """Only a table piece's own rows count towards its size, so the learned limit does not shrink to one row."""
    room = idempotent.room
    queue = PartitionQueue("flights", 0)
    batch = idempotent.append_columns(queue, _columns([bytes(size)] * 5000), 0.0)
    idempotent.room -= batch.nbytes
    idempotent.start(queue)
    batch.encode(Codec.NONE)
    idempotent.cut(batch, limit)
    idempotent.start(queue)
    fitting = queue.sizes.fitting_bytes
    idempotent.cut(batch, min(batch.encode(Codec.NONE).nbytes, limit) - 64)

    assert queue.sizes.fitting_bytes >= fitting // 3
    assert all(piece.nbytes == piece.columns().nbytes for piece in queue.closed)
    for piece in tuple(queue.closed):
        idempotent.give_up(piece, ClosedError("producer"))
    assert idempotent.room == room
