"""Rules that store each batch exactly once and in order, based on the state of a partition's producers.

The package has two callers. The partition's task passes every batch that names a producer or an idempotency key
to one `PartitionProducers` before the batch is stamped, and runs the returned effects. The log replays batches
into one `ProducerState` and writes snapshots of the state: all stored batches at startup, and then every appended
batch. The state machine of a new leader begins with a copy of the log's `ProducerState`. The package must not know
about files, loops, HTTP or clocks: events contain the time, and entries expire only according to the append times of
batches.
"""

from __future__ import annotations

from fairlead_broker.producers.aborted import AbortedTransaction, aborted_by
from fairlead_broker.producers.effects import (
    AlreadyEnded,
    AnswerAsAppended,
    AnswerStored,
    Append,
    AppendMarker,
    Effect,
    KeyReused,
    Look,
    MixedTransaction,
    OutOfOrder,
    ProducerFenced,
    Refusal,
    Refuse,
    TooManyKeys,
    TooManyTransactions,
    TransactionUnfinished,
    UnknownProducer,
)
from fairlead_broker.producers.entries import KeyEntry, ProducerEntry, StoredBatch, stored_batch
from fairlead_broker.producers.events import (
    Appended,
    AppendFailed,
    EndDecided,
    Event,
    KeyedArrived,
    SequencedArrived,
    TimePassed,
    Withdrawn,
)
from fairlead_broker.producers.open_transactions import OpenTransactions
from fairlead_broker.producers.partition_producers import PartitionProducers
from fairlead_broker.producers.sequences import UNNUMBERED, advanced
from fairlead_broker.producers.snapshot import Snapshot, decode_snapshot, encode_snapshot
from fairlead_broker.producers.state import ProducerState

__all__ = [
    "UNNUMBERED",
    "AbortedTransaction",
    "AlreadyEnded",
    "AnswerAsAppended",
    "AnswerStored",
    "Append",
    "AppendFailed",
    "AppendMarker",
    "Appended",
    "Effect",
    "EndDecided",
    "Event",
    "KeyEntry",
    "KeyReused",
    "KeyedArrived",
    "Look",
    "MixedTransaction",
    "OpenTransactions",
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
    "TooManyTransactions",
    "TransactionUnfinished",
    "UnknownProducer",
    "Withdrawn",
    "aborted_by",
    "advanced",
    "decode_snapshot",
    "encode_snapshot",
    "stored_batch",
]
