"""Batches that wait for earlier sequences."""

from __future__ import annotations

from fairlead_api.identifiers import ProducerEpoch, ProducerId, Sequence
from fairlead_broker.producers import SequencedArrived
from fairlead_broker.producers.holding import HELD_BATCHES_MAX, HOLD_SECONDS, HeldBatches


def arrived(producer_id: int, sequence: int, now: float) -> SequencedArrived[object]:
    """Return a batch of one record."""
    return SequencedArrived(
        object(), ProducerId(producer_id), ProducerEpoch(0), Sequence(sequence), Sequence(sequence), now
    )


def test_a_producer_holds_four_and_another_one_its_own() -> None:
    """A producer has at most four held batches, and held batches of other producers do not count."""
    held: HeldBatches[object] = HeldBatches()

    assert [held.add(arrived(1, n, 0.0)) for n in range(HELD_BATCHES_MAX + 1)] == [True] * 4 + [False]
    assert held.add(arrived(2, 9, 0.0))
    assert len(held) == 5


def test_the_first_to_come_is_the_first_due() -> None:
    """Of several held batches, the batch that arrived first is due first."""
    held: HeldBatches[object] = HeldBatches()
    first, second, third = arrived(1, 5, 1.0), arrived(2, 5, 2.0), arrived(1, 6, 3.0)
    for batch in (first, second, third):
        held.add(batch)

    assert held.next_deadline() == 1.0 + HOLD_SECONDS
    assert held.due(2.0 + HOLD_SECONDS) == [first, second]
    held.remove(first)
    assert held.of(ProducerId(1)) == (third,)
    assert list(held) == [second, third]
    held.remove(third)
    held.remove(second)
    assert (held.next_deadline(), held.of(ProducerId(1)), len(held)) == (None, (), 0)


def test_a_batch_is_found_by_its_request() -> None:
    """A held batch is found by the identity of its request, because two requests may be equal."""
    held: HeldBatches[object] = HeldBatches()
    batch = arrived(1, 5, 1.0)
    held.add(batch)

    assert held.find(batch.request) is batch
    assert held.find(object()) is None
