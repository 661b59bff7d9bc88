"""Each batch once and in order: what a partition remembers of its producers, without a clock or a disk.

Two callers. The partition's task feeds every batch that names a producer or an idempotency key into one
`PartitionProducers` before it is stamped, and runs the effects it answers. The log replays what it appends, and
at a start what it finds, into one `ProducerState`, which it snapshots; a new leader's machine begins with a copy of
it. Must not know files, loops, HTTP or time: the time is in the events, and state grows old by the append times of
batches alone.
"""

from __future__ import annotations

from fairlead_broker.producers.effects import (
    AnswerAsAppended,
    AnswerStored,
    Append,
    Effect,
    KeyReused,
    OutOfOrder,
    ProducerFenced,
    Refusal,
    Refuse,
    TooManyKeys,
    UnknownProducer,
)
from fairlead_broker.producers.entries import KeyEntry, ProducerEntry, StoredBatch, stored_batch
from fairlead_broker.producers.events import (
    Appended,
    AppendFailed,
    Event,
    KeyedArrived,
    SequencedArrived,
    TimePassed,
    Withdrawn,
)
from fairlead_broker.producers.partition_producers import PartitionProducers
from fairlead_broker.producers.sequences import advanced
from fairlead_broker.producers.snapshot import Snapshot, decode_snapshot, encode_snapshot
from fairlead_broker.producers.state import ProducerState

__all__ = [
    "AnswerAsAppended",
    "AnswerStored",
    "Append",
    "AppendFailed",
    "Appended",
    "Effect",
    "Event",
    "KeyEntry",
    "KeyReused",
    "KeyedArrived",
    "OutOfOrder",
    "PartitionProducers",
    "ProducerEntry",
    "ProducerFenced",
    "ProducerState",
    "Refusal",
    "Refuse",
    "SequencedArrived",
    "Snapshot",
    "StoredBatch",
    "TimePassed",
    "TooManyKeys",
    "UnknownProducer",
    "Withdrawn",
    "advanced",
    "decode_snapshot",
    "encode_snapshot",
    "stored_batch",
]
