"""The order of transactional batches and markers: a marker ends its epoch, and a higher epoch waits for the marker."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.batch.control_batches import Marker, MarkerKind
from fairlead_api.identifiers import Offset, ProducerId
from fairlead_broker.producers import (
    UNNUMBERED,
    MixedTransaction,
    ProducerFenced,
    TooManyTransactions,
    TransactionUnfinished,
    UnknownProducer,
    aborted_by,
    partition_producers,
)
from producers_kit import Shell

EPOCH = {"transactional": True, "epoch": 4}


@pytest.fixture
def shell() -> Shell:
    """Return a partition without producers."""
    return Shell()


def test_a_marker_names_the_first_offset_of_its_transaction(shell: Shell) -> None:
    """The marker follows the batches, with the first offset of the transaction and the time of the decision."""
    shell.store(0, producer_id=9)
    shell.store(0, 1, **EPOCH)
    end = shell.end_transaction(4)
    shell.append()

    assert end.marker == Marker(7, 4, MarkerKind.COMMIT, 1, 5)  # type: ignore[arg-type]
    assert shell.answers[end] == (3, 3)


def test_a_marker_waits_for_ordered_batches(shell: Shell) -> None:
    """A marker is appended in the next append after the batches of its producer, even if their append fails."""
    shell.send(0, **EPOCH)
    end = shell.end_transaction(4, MarkerKind.ABORT)
    alone = shell.group.copy()
    shell.append()
    shell.append()
    shell.send(0, producer_id=8, **EPOCH)
    failed = shell.end_transaction(4, MarkerKind.ABORT, producer_id=8)
    shell.fail()
    shell.append()

    assert end not in alone
    assert end.marker is not None
    assert end.marker.first_offset == 0
    assert failed.marker is not None
    assert failed.marker.first_offset is None


def test_nothing_is_stored_behind_a_marker(shell: Shell) -> None:
    """A batch of an ended or older epoch is refused, whether the marker is only ordered or already appended."""
    shell.store(0, **EPOCH)
    shell.end_transaction(4)
    ordered = shell.send(1, **EPOCH)
    shell.append()
    appended, older = shell.send(1, **EPOCH), shell.send(0, transactional=True, epoch=3)

    assert [shell.answers[each] for each in (ordered, appended)] == [ProducerFenced(7, 4, 4)] * 2  # type: ignore[arg-type]
    assert shell.answers[older] == ProducerFenced(7, 3, 4)  # type: ignore[arg-type]


def test_a_marker_without_batches_fences_late_ones(shell: Shell) -> None:
    """A marker is appended even without an open transaction, so that late batches of its transaction are refused."""
    end = shell.end_transaction(4, MarkerKind.ABORT)
    shell.append()
    late = shell.send(0, **EPOCH)

    assert end.marker is not None
    assert end.marker.first_offset is None
    assert shell.answers[late] == ProducerFenced(7, 4, 4)  # type: ignore[arg-type]


def test_a_repeated_end_appends_one_marker(shell: Shell) -> None:
    """A repeated end, and the end of an older epoch, are answered without a second marker."""
    shell.store(0, **EPOCH)
    ends = [shell.end_transaction(4), shell.end_transaction(4)]
    shell.append()
    ends += [shell.end_transaction(4), shell.end_transaction(3)]

    assert [shell.answers[each] for each in ends] == [(1, 1), (-1, -1), (-1, -1), (-1, -1)]


def test_a_higher_epoch_waits_for_the_marker(shell: Shell) -> None:
    """A batch of the next transaction is held until the leader has read the decision, and appended with the marker."""
    shell.store(0, **EPOCH)
    early = shell.send(0, transactional=True, epoch=5)
    looks = shell.looks.copy()
    shell.end_transaction(4)
    shell.append()

    assert looks == [7]
    assert shell.answers[early] == (2, 2)
    assert dict(shell.machine.transactions.first_offsets) == {7: 2}


def test_a_higher_epoch_behind_ordered_batches_waits_too(shell: Shell) -> None:
    """A batch of the next transaction is held even if the open transaction has no appended batch yet."""
    shell.send(0, **EPOCH)
    early = shell.send(0, transactional=True, epoch=5)
    shell.append()

    assert shell.looks == [7]
    assert early not in shell.answers
    assert shell.machine.held_count == 1


def test_an_end_waits_for_the_end_of_an_earlier_transaction(shell: Shell) -> None:
    """The end of a higher epoch is appended after the marker of the lower epoch that is still open."""
    shell.store(0, **EPOCH)
    higher = shell.end_transaction(5)
    assert (shell.looks, shell.group) == ([7], [])
    shell.end_transaction(4, MarkerKind.ABORT)
    shell.append()
    shell.append()

    assert shell.answers[higher] == (2, 2)


def test_batches_without_a_sequence_are_numbered_when_they_are_ordered(shell: Shell) -> None:
    """Batches without a sequence that wait for one marker get different sequences, and each batch is stored."""
    shell.store(0, **EPOCH)
    waiting = [shell.send(UNNUMBERED, count, transactional=True, epoch=5) for count in (2, 1, 3)]
    shell.end_transaction(4)
    shell.append()
    following = shell.send(UNNUMBERED, transactional=True, epoch=5)
    shell.append()
    repeat = shell.send(2, transactional=True, epoch=5)

    assert [request.sequence for request in (*waiting, following)] == [0, 2, 3, 6]
    assert [shell.answers[request] for request in (*waiting, following)] == [(2, 3), (4, 4), (5, 7), (8, 8)]
    assert shell.answers[repeat] == (4, 4)


def test_batches_that_wait_for_a_failed_append_are_decided_again(shell: Shell) -> None:
    """Batches of the next transaction are appended if the append that opened the earlier transaction fails."""
    shell.send(0, **EPOCH)
    waiting = [shell.send(UNNUMBERED, transactional=True, epoch=5) for _ in range(2)]
    shell.send(0, producer_id=8)
    other = shell.send(2, producer_id=8)
    shell.fail()
    shell.append()

    assert [shell.answers[request] for request in waiting] == [(0, 0), (1, 1)]
    assert other not in shell.answers


def test_a_held_batch_is_refused_after_a_second(shell: Shell) -> None:
    """Batches of the next transaction are refused if the open transaction does not end within a second."""
    shell.store(0, **EPOCH)
    held = shell.send(0, transactional=True, epoch=6)
    more = [shell.send(number, transactional=True, epoch=6) for number in range(1, 5)]
    shell.wait(1.0)

    assert shell.answers[held] == TransactionUnfinished(7, 6, 4)  # type: ignore[arg-type]
    assert shell.answers[more[-1]] == TransactionUnfinished(7, 6, 4)  # type: ignore[arg-type]


def test_a_held_batch_of_an_ended_epoch_is_fenced(shell: Shell) -> None:
    """A batch that was held for a missing batch is refused as fenced after the marker of its epoch."""
    shell.store(0, **EPOCH)
    ahead = shell.send(2, **EPOCH)
    shell.end_transaction(4)
    shell.append()

    assert shell.answers[ahead] == ProducerFenced(7, 4, 4)  # type: ignore[arg-type]


def test_an_epoch_is_transactional_or_not(shell: Shell) -> None:
    """A batch whose transactional bit differs from that of the earlier batches of its epoch is refused."""
    shell.store(0, **EPOCH)
    shell.store(0, producer_id=8)
    plain, transactional = shell.send(1, epoch=4), shell.send(1, producer_id=8, transactional=True)

    assert shell.answers[plain] == MixedTransaction(7, 4)  # type: ignore[arg-type]
    assert shell.answers[transactional] == MixedTransaction(8, 0)  # type: ignore[arg-type]


def test_a_partition_has_a_maximum_of_open_transactions(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new transaction beyond the maximum is refused, and an open transaction continues."""
    monkeypatch.setattr(partition_producers, "OPEN_MAX", 1)
    shell.store(0, **EPOCH)
    refused, further = shell.send(0, producer_id=8, transactional=True), shell.send(1, **EPOCH)
    shell.append()

    assert shell.answers[refused] == TooManyTransactions(1)
    assert shell.answers[further] == (1, 1)


def test_a_producer_changes_from_plain_to_transactional(shell: Shell) -> None:
    """A higher epoch may change the transactional bit if its producer has no open transaction."""
    shell.store(0, 1)
    opened = shell.store(0, transactional=True, epoch=1)

    assert shell.answers[opened[0]] == (2, 2)


def test_an_abort_marker_names_the_batches_to_skip() -> None:
    """Only an abort marker of a transaction with batches in the partition makes readers skip batches."""
    aborted = Marker(7, 4, MarkerKind.ABORT, 3, 5)  # type: ignore[arg-type]
    committed = Marker(7, 4, MarkerKind.COMMIT, 3, 5)  # type: ignore[arg-type]
    absent = Marker(7, 4, MarkerKind.ABORT, None, 5)  # type: ignore[arg-type]

    assert aborted_by(aborted, Offset(9)) == (7, 3, 9, 4)
    assert [aborted_by(marker, Offset(9)) for marker in (committed, absent)] == [None, None]


def test_open_transactions_and_waiting_ends_are_reported(shell: Shell) -> None:
    """The state machine reports open transactions, and ends that wait for others."""
    shell.store(0, 1, **EPOCH)
    shell.store(0, producer_id=9, transactional=True)
    waiting = shell.end_transaction(6)

    assert list(shell.machine.open_transactions()) == [(7, 4, 0), (9, 0, 2)]
    assert list(shell.machine.waiting_ends()) == [waiting]


def test_the_sequences_of_a_kafka_session_continue_behind_a_marker(shell: Shell) -> None:
    """A client that states one epoch for its transactions continues its sequences, and no batch is left out."""
    session: dict[str, Any] = {"transactional": True, "session": 4}
    shell.send(0, 3, epoch=4, **session)
    shell.append()
    shell.end_transaction(4)
    ordered = shell.send(3, 2, epoch=5, **session)
    shell.append()
    shell.end_transaction(5)
    shell.append()
    ahead = shell.send(7, epoch=6, **session)
    following = shell.send(5, 2, epoch=6, **session)
    shell.append()

    assert shell.answers[ordered] == (4, 5)
    assert (shell.answers[following], shell.answers[ahead]) == ((7, 8), (9, 9))


def test_the_sequences_of_a_new_kafka_session_begin_at_0(shell: Shell) -> None:
    """The first batch of a later session, or in a partition that the session has not written to, has sequence 0."""
    shell.send(0, 3, epoch=4, transactional=True)
    shell.append()
    shell.end_transaction(4)
    shell.append()
    later = shell.send(0, epoch=5, transactional=True, session=5)
    other = shell.send(0, epoch=5, producer_id=8, transactional=True, session=4)
    stale = shell.send(3, epoch=5, producer_id=9, transactional=True, session=4)
    shell.append()
    shell.wait(2)

    assert (shell.answers[later], shell.answers[other]) == ((4, 4), (5, 5))
    assert isinstance(shell.answers[stale], UnknownProducer)


def test_the_epoch_of_an_open_transaction_is_known(shell: Shell) -> None:
    """The epoch of a producer's transaction is known from its first batch to its marker."""
    producer_id = ProducerId(7)
    before = shell.machine.open_epoch(producer_id)
    shell.store(0, **EPOCH)
    during = shell.machine.open_epoch(producer_id)
    shell.end_transaction(4)
    shell.append()

    assert (before, during, shell.machine.open_epoch(producer_id)) == (None, 4, None)
