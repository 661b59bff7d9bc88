"""Helpers for tests of cleaning: keyed batches of every kind, rounds without a child process, and what readers see."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead_api.batch.batches import ProducerStamp, Record, decode_records, encode, record_batch
from fairlead_api.batch.control_batches import Marker, MarkerKind, pack_marker
from fairlead_api.batch.extension import idempotency_extension
from fairlead_api.batch.header import STAMP_BYTES, Codec, StampFlag, make_stamp, pack_header, read_header
from fairlead_api.identifiers import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.compaction.key_map import BUFFER_BYTES_MIN
from fairlead_broker.log import PartitionLog, StampedBatch
from fairlead_broker.log.cleaning.rounds import CleaningOrder, GroupCleaned, Mapped, RoundDone, clean
from fairlead_broker.log.cleaning_plan import cleaning_order, plan_round
from fairlead_broker.log.segments.storage import PosixStorage, Storage
from log_kit import FIRST_TIME_US, read_all

SEED = bytes(range(32))
Row = tuple[bytes | None, bytes | None]


@dataclass(slots=True)
class KeyedBatches:
    """Appends batches of every kind to a log, as a leader does."""

    log: PartitionLog
    epoch: int = 1
    time_us: int = FIRST_TIME_US
    sequences: dict[int, int] = field(default_factory=dict)

    def append(
        self,
        rows: Sequence[Row],
        *,
        codec: Codec = Codec.NONE,
        append_time: bool = False,
        producer: ProducerStamp | None = None,
        idempotency_key: bytes | None = None,
        headers: bool = False,
    ) -> int:
        """Append one batch, and return its base offset."""
        self.time_us += 1000
        columns = record_batch(
            [value for _, value in rows],
            [key for key, _ in rows],
            [self.time_us + number for number in range(len(rows))],
            [[("a", b"1"), ("a", None)] if number % 2 else None for number in range(len(rows))]
            if headers
            else None,
            default_timestamp_us=0,
        )
        extension = () if idempotency_key is None else idempotency_extension(idempotency_key, bytes(16))
        data = encode(columns, codec, producer, extension).to_bytes()
        return self._append(data, len(rows), StampFlag.APPEND_TIME if append_time else 0)

    def produce(self, producer_id: int, rows: Sequence[Row], epoch: int = 0, **kinds: object) -> int:
        """Append the next batch of an idempotent producer."""
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(rows)
        stamp = ProducerStamp(producer_id, epoch, sequence)
        return self.append(rows, producer=stamp, **kinds)  # type: ignore[arg-type]

    def transact(self, producer_id: int, epoch: int, rows: Sequence[Row], sequence: int = 0) -> int:
        """Append a batch of a transaction."""
        return self.append(rows, producer=ProducerStamp(producer_id, epoch, sequence, is_transactional=True))

    def end(self, producer_id: int, epoch: int, first_offset: int, *, commit: bool) -> int:
        """Append a marker."""
        self.time_us += 1000
        kind = MarkerKind.COMMIT if commit else MarkerKind.ABORT
        marker = Marker(
            ProducerId(producer_id),
            ProducerEpoch(epoch),
            kind,
            Offset(first_offset),
            TimestampUs(self.time_us),
        )
        return self._append(pack_marker(marker), 1, 0)

    def begin_epoch(self) -> None:
        """Begin the next leader epoch."""
        self.epoch += 1
        self.log.begin_epoch(LeaderEpoch(self.epoch))

    def _append(self, data: bytes, count: int, flags: int) -> int:
        base = self.log.end_offset
        header = read_header(data)
        stamp = make_stamp(header, base, self.epoch, self.time_us, flags)
        newest = self.time_us if flags else header.max_timestamp_us
        content = memoryview(data)[STAMP_BYTES:]
        last = Offset(base + count - 1)
        self.log.append([StampedBatch(stamp, content, base, last, newest, len(data))])
        self.log.checkpoint_high_watermark = self.log.end_offset
        return base


def roll(log: PartitionLog) -> None:
    """Close the last segment and make everything durable, so that every record can be cleaned."""
    log.roll()
    log.sync()


def order_for(
    log: PartitionLog,
    now_us: int,
    *,
    removal_limit: int = 0,
    buffer_bytes: int = BUFFER_BYTES_MIN,
    seed: bytes = SEED,
    stable_offset: int | None = None,
) -> tuple[CleaningOrder, int]:
    """Return the order of the next round, due or not, and the log's generation.

    `stable_offset`: end of the records that may be cleaned, by default the high watermark.
    """
    stable = log.checkpoint_high_watermark if stable_offset is None else Offset(stable_offset)
    planned = plan_round(log, stable, TimestampUs(now_us))
    order = cleaning_order(
        log,
        planned,
        removal_limit=Offset(removal_limit),
        now_us=TimestampUs(now_us),
        buffer_bytes=buffer_bytes,
        seed=seed,
    )
    # The order is encoded and decoded as for the child process.
    return msgspec.json.decode(msgspec.json.encode(order), type=CleaningOrder), planned.generation


def clean_log(log: PartitionLog, now_us: int, storage: Storage | None = None, **limits: int) -> RoundDone:
    """Carry out one round, and return its end."""
    done = clean_beside(log, now_us, lambda: None, storage, **limits)
    assert done is not None, "the log was cut during the round"
    return done


def clean_beside(
    log: PartitionLog,
    now_us: int,
    before_swap: Callable[[], None],
    storage: Storage | None = None,
    **limits: int,
) -> RoundDone | None:
    """Carry out one round beside other changes of the log.

    `before_swap` is called before each swap. Returns None if the log was cut, so that a swap was refused.
    """
    order, generation = order_for(log, now_us, **limits)  # type: ignore[arg-type]
    done = None
    for event in clean(order, storage or PosixStorage()):
        if isinstance(event, GroupCleaned):
            before_swap()
            if not log.swap(event, generation, TimestampUs(0)):
                return None
        elif isinstance(event, RoundDone):
            done = event
        elif isinstance(event, Mapped):
            assert event.until <= order.segments[-1].next_offset
    assert done is not None
    return done if log.note_cleaned(done, generation) else None


def committed(log: PartitionLog, offset: int | None = None) -> list[Record]:
    """Return the records that readers of committed records get, from an offset or from the log start."""
    start = log.log_start_offset if offset is None else offset
    log.load_aborted()
    records, at = [], Offset(start)
    while at < log.end_offset:
        part = log.read(at, 1 << 16, log.end_offset)
        # An accepted loss at the end of the log leaves no bytes.
        for piece in (log.without_aborted(part) or []) if part.data else []:
            records += [record for record in decode_records(piece) if record.offset >= at]
        assert part.next_offset > at
        at = part.next_offset
    return records


def newest(records: Sequence[Record]) -> dict[bytes, Record]:
    """Return the newest record of each key, without deleted keys."""
    found = {record.key: record for record in records if record.key is not None}
    return {key: record for key, record in found.items() if record.value is not None}


def check_covered(log: PartitionLog) -> None:
    """Check that every offset is in exactly one batch, and that segments follow one another without gaps."""
    data, at = memoryview(read_all(log)), 0
    expected = None
    while at < len(data):
        header = read_header(data, at)
        assert expected in (None, header.base_offset), f"offset {header.base_offset} follows {expected}"
        expected, at = header.next_offset, at + header.total_bytes
    assert expected in (None, log.end_offset)


def make_hostile(data: bytearray, position: int, kind: str) -> None:
    """Change a stored batch: one bit (`flipped`), or the Arrow body with right checksums (`malformed`)."""
    header = read_header(data, position)
    end = position + header.total_bytes
    if kind == "flipped":
        data[end - 100] ^= 1
        return
    body = bytes(data[position + header.body_start : end])
    broken = body[:-300] + bytes(range(255, 155, -1)) * 3
    packed = pack_header(header, [broken])
    stamp = make_stamp(read_header(packed), header.base_offset, header.leader_epoch, header.append_time_us)
    data[position:end] = stamp + packed[STAMP_BYTES:] + broken


def random_history(batches: KeyedBatches, rng: random.Random, count: int, keys: int) -> None:
    """Append batches of all kinds at random: codecs, times, epochs, producers, keys, transactions, and rolls."""
    names = [b"k%d" % number * (1 + number % 7) for number in range(keys)]
    open_: dict[int, tuple[int, int, int]] = {}
    for number in range(count):
        rows: list[Row] = [
            (rng.choice(names), None if rng.random() < 0.15 else b"v%d-%d" % (number, row))
            for row in range(rng.randint(1, 6))
        ]
        codec = rng.choice(list(Codec))
        match rng.randrange(10):
            case 0:
                batches.begin_epoch()
            case 1:
                roll(batches.log)
            case 2:
                batches.append(rows, codec=codec, append_time=True)
            case 3:
                batches.produce(rng.randint(1, 3), rows, codec=codec)
            case 4:
                batches.append(rows, codec=codec, idempotency_key=b"id%d" % number)
            case 5 | 6:
                producer = rng.randint(100, 102)
                if producer in open_:
                    epoch, first, sequence = open_[producer]
                    batches.transact(producer, epoch, rows, sequence)
                    open_[producer] = (epoch, first, sequence + len(rows))
                else:
                    first = batches.transact(producer, number, rows)
                    open_[producer] = (number, first, len(rows))
            case 7 if open_:
                producer = rng.choice(list(open_))
                epoch, first, _ = open_.pop(producer)
                batches.end(producer, epoch, first, commit=rng.random() < 0.5)
            case _:
                batches.append(rows, codec=codec, headers=rng.random() < 0.3)
    for producer, (epoch, first, _) in open_.items():
        batches.end(producer, epoch, first, commit=rng.random() < 0.5)
