"""Open transactions of a partition, and the last stable offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.producers import ProducerState, state, stored_batch
from fairlead_broker.producers.open_transactions import OpenTransactions
from fairlead_broker.producers.state import RETENTION_US, STEP_US_MAX

if TYPE_CHECKING:
    import pytest

START_US = 1_700_000_000_000_000


def batch_of(known: ProducerState, producer: int, epoch: int, offset: int, time_us: int = START_US) -> None:
    """Apply a transactional batch of one record, the first of its epoch."""
    known.replay(ProducerId(producer), ProducerEpoch(epoch), stored_batch(0, 0, offset, time_us), True)


def marker_of(known: ProducerState, producer: int, epoch: int, offset: int, time_us: int = START_US) -> None:
    """Apply a marker."""
    known.replay_marker(ProducerId(producer), ProducerEpoch(epoch), Offset(offset), TimestampUs(time_us))


@dataclass
class Transaction:
    """A transaction of the model, with the offsets of its first batch and its marker."""

    first: int
    marker: int | None = None


@dataclass
class Model:
    """Model of a log: its end, its high watermark and a list of its transactions."""

    end: int = 0
    high_watermark: int = 0
    transactions: list[Transaction] = field(default_factory=list)
    open: dict[int, Transaction] = field(default_factory=dict)


def test_an_ended_transaction_holds_readers_until_its_marker_is_committed() -> None:
    """The last stable offset stays at the start of a transaction until the high watermark has passed its marker."""
    transactions = OpenTransactions({ProducerId(1): Offset(10)}.items(), ())
    transactions.ended(ProducerId(2), Offset(11))
    transactions.ended(ProducerId(1), Offset(12))

    assert transactions.stable_offset(Offset(12), Offset(0)) == 10
    assert transactions.stable_offset(Offset(13), Offset(0)) == 13
    assert transactions.stable_offset(Offset(5), Offset(7)) == 7


class StableOffsets(RuleBasedStateMachine):
    """The last stable offset equals that of a naive walk over all transactions, and never decreases."""

    def __init__(self) -> None:
        """Begin with an empty log."""
        super().__init__()
        self.state = ProducerState()
        self.model = Model()
        self.epochs = dict.fromkeys(range(3), 0)
        self.before = 0

    @rule(producer=st.integers(0, 2))
    def append(self, producer: int) -> None:
        """Append a batch to the producer's open transaction, or begin a transaction."""
        model, offset = self.model, self.model.end
        batch_of(self.state, producer, self.epochs[producer], offset)
        if producer not in model.open:
            model.open[producer] = Transaction(offset)
            model.transactions.append(model.open[producer])
        model.end += 1

    @rule(producer=st.integers(0, 2))
    def end_transaction(self, producer: int) -> None:
        """Append a marker, even if the producer has no open transaction."""
        marker_of(self.state, producer, self.epochs[producer], self.model.end)
        if producer in self.model.open:
            self.model.open.pop(producer).marker = self.model.end
        self.epochs[producer] += 1
        self.model.end += 1

    @rule(share=st.floats(0, 1))
    def raise_high_watermark(self, share: float) -> None:
        """Move the high watermark towards the log end."""
        model = self.model
        model.high_watermark += int((model.end - model.high_watermark) * share)

    @rule()
    def copy(self) -> None:
        """Replace the state with a copy of it, as a new leader does."""
        self.state = self.state.copy()

    @invariant()
    def agrees(self) -> None:
        """Compare the last stable offset with its definition."""
        high = self.model.high_watermark
        unstable = [
            each.first for each in self.model.transactions if each.marker is None or each.marker >= high
        ]
        found = self.state.transactions.stable_offset(Offset(high), Offset(0))
        assert found == min([high, *unstable])
        assert found >= self.before
        self.before = found


TestStableOffsets = StableOffsets.TestCase


def test_the_log_start_bounds_the_stable_offset() -> None:
    """A log start inside an open transaction moves the last stable offset."""
    transactions = OpenTransactions([(ProducerId(1), Offset(3))])

    assert transactions.stable_offset(Offset(9), Offset(5)) == 5


def test_a_marker_ends_the_epoch() -> None:
    """A marker ends the epoch of its producer, even if the producer has no batches, and leaves the last batch.

    A marker with an older epoch changes nothing.
    """
    known = ProducerState()
    batch_of(known, 7, 4, 0)
    batch = known.producers[7].batches[-1]  # type: ignore[index]
    marker_of(known, 7, 3, 1)
    still_open = 7 in known.transactions
    marker_of(known, 7, 4, 2)
    marker_of(known, 8, 1, 3)
    entries = [known.producer(7), known.producer(8)]

    assert still_open
    assert len(known.transactions) == 0
    assert [(each.epoch, each.is_ended, each.batches, each.next_sequence) for each in entries if each] == [
        (4, True, (batch,), 0),
        (1, True, (), 0),
    ]


def test_an_open_transaction_does_not_expire() -> None:
    """The entry of an open transaction outlives a day and the limit of producers."""
    known = ProducerState()
    batch_of(known, 7, 0, 0)
    known.replay(ProducerId(8), ProducerEpoch(0), stored_batch(0, 0, 1, START_US))
    for time_us in range(START_US, START_US + RETENTION_US + 2 * STEP_US_MAX, STEP_US_MAX):
        known.advance(time_us)

    assert list(known.producers) == [7]
    assert known.producer(7) is not None
    marker_of(known, 7, 0, 2, START_US + RETENTION_US)
    assert list(known.producers) == [7]


def test_an_open_transaction_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, the least recently active producer without an open transaction is removed."""
    monkeypatch.setattr(state, "PRODUCERS_MAX", 2)
    known = ProducerState()
    batch_of(known, 7, 0, 0)
    for offset, producer in enumerate((8, 9, 10), start=1):
        known.replay(ProducerId(producer), ProducerEpoch(0), stored_batch(0, 0, offset, START_US))

    assert 7 in known.producers
    assert 10 in known.producers
