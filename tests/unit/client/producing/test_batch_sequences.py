"""Sequences of one partition: the stamps of batches, and the effect of a lost batch on later batches.

A batch in doubt is a batch that may be stored although its last attempt failed.
"""

from __future__ import annotations

import pytest

from fairlead.errors import (
    ClosedError,
    ClusterError,
    FixError,
    UnknownProducerError,
    UnreachableError,
    error_of,
)
from fairlead.producing.delivery import doubted
from fairlead.producing.pending_batch import SEQUENCE_MAX, PartitionSequences, ProducerIdentity, advanced
from fairlead_api.batch.batches import ProducerStamp
from fairlead_api.problems import ProblemError, SideEffect

FIRST = ProducerIdentity(7, 0)
CAUSE = ClosedError("producer")


@pytest.fixture
def sequences() -> PartitionSequences:
    """Return the sequences of producer 7."""
    sequences = PartitionSequences()
    sequences.begin(FIRST)
    return sequences


def _refusal(code: str) -> ClusterError:
    return error_of(ProblemError(code, f"scripted {code}"), subject="produce to flights-0")


def test_sequences_count_records(sequences: PartitionSequences) -> None:
    """Each batch starts at the sequence after the previous batch."""
    stamps = [sequences.stamp(count) for count in (3, 1, 2)]

    assert stamps == [ProducerStamp(7, 0, 0), ProducerStamp(7, 0, 3), ProducerStamp(7, 0, 4)]


def test_sequences_wrap(sequences: PartitionSequences) -> None:
    """Sequence 2^31 - 1 is followed by 0, even within a batch."""
    sequences.stamp(SEQUENCE_MAX - 1)

    assert [sequences.stamp(3).base_sequence, sequences.stamp(1).base_sequence] == [SEQUENCE_MAX - 1, 1]
    assert advanced(SEQUENCE_MAX, 1) == 0


def test_there_is_no_stamp_without_an_identity() -> None:
    """Batches have no stamp until the cluster has assigned a producer id."""
    assert PartitionSequences().renews(1)


def test_the_last_batch_gives_its_sequences_back(sequences: PartitionSequences) -> None:
    """If the last batch is certainly not stored, its sequences are used again, so that there is no gap."""
    sequences.stamp(2)
    stamp = sequences.stamp(3)
    sequences.given_up(2, stamp, 3, CAUSE, doubtful=False)

    assert sequences.renewal is None
    assert sequences.stamp(1).base_sequence == 2


def test_batches_behind_an_unstored_batch_restart_in_a_new_epoch(sequences: PartitionSequences) -> None:
    """Batches after a batch that is not stored restart in a new epoch, and earlier batches keep epoch and sequence."""
    stamps = [sequences.stamp(1) for _ in range(3)]
    sequences.given_up(2, stamps[1], 1, CAUSE, doubtful=False)

    assert [sequences.renews(number) for number in (1, 2, 3)] == [False, False, True]
    assert sequences.renewal is not None
    assert (sequences.renewal.new_id, sequences.renewal.doubtful) == (False, False)
    sequences.begin(FIRST.next_epoch())
    assert sequences.stamp(1) == ProducerStamp(7, 1, 0)


def test_those_behind_a_break_go_on_where_it_began(sequences: PartitionSequences) -> None:
    """If no batch after a gap can still arrive, numbering resumes at the start of the gap in the same epoch."""
    stamps = [sequences.stamp(3) for _ in range(3)]
    sequences.given_up(2, stamps[1], 3, CAUSE, doubtful=False)
    sequences.given_up(3, stamps[2], 3, CAUSE, doubtful=False)
    sequences.resume()

    assert sequences.renewal is None
    assert sequences.stamp(1) == ProducerStamp(7, 0, 3)


@pytest.mark.parametrize("order", [(3, 2), (2, 3)])
def test_a_batch_that_may_still_come_ends_the_epoch_of_those_before_it(
    sequences: PartitionSequences, order: tuple[int, int]
) -> None:
    """A failed batch that may still arrive ends the epoch, because otherwise another batch could get its sequences."""
    stamps = [sequences.stamp(3) for _ in range(4)]
    for number in order:
        sequences.given_up(number, stamps[number - 1], 3, CAUSE, doubtful=number == 3)

    assert sequences.renewal is not None
    assert sequences.renewal.resume_at is None
    sequences.given_up(1, stamps[0], 3, CAUSE, doubtful=False)
    assert sequences.renewal.after == 1
    assert sequences.renewal.resume_at is None


def test_batches_behind_one_that_is_cut_have_new_numbers(sequences: PartitionSequences) -> None:
    """Batches after a batch that was split get new numbers but keep their state."""
    stamps = [sequences.stamp(1) for _ in range(5)]
    for number in (2, 4):
        sequences.given_up(number, stamps[number - 1], 1, CAUSE, doubtful=True)
    sequences.given_up(3, stamps[2], 1, CAUSE, doubtful=False)
    sequences.move(1, 10)
    sequences.acknowledged(12)

    assert [sequences.renews(number) for number in (13, 14)] == [False, True]
    assert not sequences.refused(20, _refusal("out_of_order_sequence"))
    sequences.acknowledged(14)
    assert sequences.refused(20, _refusal("out_of_order_sequence"))


def test_a_doubtful_batch_is_cleared_up_by_the_next(sequences: PartitionSequences) -> None:
    """The acknowledgement of a later batch, but not of an earlier one, proves that a batch in doubt is stored."""
    stamps = [sequences.stamp(1) for _ in range(3)]
    sequences.given_up(2, stamps[1], 1, CAUSE, doubtful=True)
    sequences.acknowledged(1)

    assert not sequences.refused(3, _refusal("out_of_order_sequence"))
    sequences.begin(FIRST.next_epoch())
    sequences.given_up(4, sequences.stamp(1), 1, CAUSE, doubtful=True)
    sequences.acknowledged(5)
    assert sequences.refused(6, _refusal("out_of_order_sequence"))


def test_a_gap_needs_the_next_epoch_and_leaves_doubt(sequences: PartitionSequences) -> None:
    """A batch in doubt that turns out not to be stored ends its epoch, because it may still arrive."""
    stamp = sequences.stamp(1)
    sequences.given_up(1, stamp, 1, CAUSE, doubtful=True)
    news = sequences.refused(2, _refusal("unknown_producer"))

    assert not news
    assert sequences.renewal is not None
    assert (sequences.renewal.new_id, sequences.renewal.doubtful) == (False, True)
    assert [sequences.renews(number) for number in (1, 2)] == [False, True]


def test_a_forgotten_producer_needs_a_new_id(sequences: PartitionSequences) -> None:
    """A producer that the partition no longer remembers, for example after a day, needs a new id."""
    news = sequences.refused(2, _refusal("unknown_producer"))

    assert not news
    assert sequences.renewal is not None
    assert sequences.renewal.new_id


def test_a_missing_acknowledged_batch_is_news(sequences: PartitionSequences) -> None:
    """The refusal of a batch because an acknowledged batch is missing is reported as a loss of records."""
    assert sequences.refused(2, _refusal("out_of_order_sequence"))


def test_a_batch_of_an_old_identity_changes_nothing(sequences: PartitionSequences) -> None:
    """A failed batch of an earlier producer id changes nothing."""
    sequences.stamp(1)
    stamp = sequences.stamp(1)
    sequences.refused(1, _refusal("unknown_producer"))
    renewal = sequences.renewal
    sequences.given_up(2, stamp, 1, CAUSE, doubtful=True)
    sequences.given_up(3, None, 1, CAUSE, doubtful=False)

    assert sequences.renewal is renewal


def test_a_doubtful_batch_is_refused_as_perhaps_stored() -> None:
    """The error for a batch in doubt has the type and the data of the refusal, but the side effect `maybe`."""
    problem = ProblemError("unknown_producer", "producer 7 is unknown", data={"producer_id": 7})
    error = doubted(
        error_of(problem, subject="produce to flights-0", broker="http://b:1"), "produce to flights-1"
    )

    assert isinstance(error, UnknownProducerError)
    assert error.side_effect is SideEffect.MAYBE
    assert (error.subject, error.data) == ("produce to flights-1", {"producer_id": 7})
    assert doubted(CAUSE, "produce to flights-1") is CAUSE


def test_a_doubtful_batch_that_was_not_sent_again_may_be_stored_too() -> None:
    """A batch in doubt may be stored even if its last attempt could not connect."""
    given = UnreachableError(
        "produce to flights-0 and 1 other partitions", {"http://b:1": "refused"}, sent=False
    )
    error = doubted(given, "produce to flights-1")

    assert isinstance(error, UnreachableError)
    assert (error.subject, error.side_effect) == ("produce to flights-1", SideEffect.MAYBE)
    assert "stored" in error.__notes__[0]
    assert given.side_effect is SideEffect.NONE


def test_a_refusal_of_a_newer_server_may_be_doubted() -> None:
    """The error for a batch in doubt keeps the kind, data and next step of a refusal with an unknown code."""
    problem = ProblemError.from_document({"code": "too_warm", "status": 400, "kind": "fix", "celsius": 40})
    error = doubted(error_of(problem, subject="produce to flights-0", advice="Wait."), "produce to flights-0")

    assert isinstance(error, FixError)
    assert (error.code, error.status, error.data) == ("too_warm", 400, {"celsius": 40})
    assert (error.side_effect, error.next_step) == (SideEffect.MAYBE, "Wait.")
