"""The entry of one producer in the producer state of a partition."""

from __future__ import annotations

from fairlead_api.identifiers import ProducerEpoch
from fairlead_broker.producers import ProducerEntry, stored_batch


def test_the_last_five_batches_are_remembered() -> None:
    """An entry keeps five batches, and the sixth replaces the oldest."""
    entry = ProducerEntry(ProducerEpoch(0), (stored_batch(0, 9, 100, 1),), 1)
    for number in range(1, 6):
        entry = entry.followed_by(stored_batch(10 * number, 9, 100 + 10 * number, 1), 1 + number)

    assert [batch.first_sequence for batch in entry.batches] == [10, 20, 30, 40, 50]
    assert (entry.next_sequence, entry.partition_time_us) == (60, 6)
    assert entry.find(0, 9) is None
    assert entry.find(10, 18) is None
    assert entry.find(10, 19) == entry.batches[0]


def test_a_batch_knows_its_offsets_over_the_end_of_the_numbers() -> None:
    """The last sequence of a batch wraps at the limit, but its last offset does not."""
    batch = stored_batch(2**31 - 2, 4, 1000, 7)

    assert (batch.last_sequence, batch.last_offset, batch.append_time_us) == (2, 1004, 7)


def test_an_entry_without_batches_expects_the_first_sequence() -> None:
    """A producer whose first record in a partition is a marker begins with sequence 0, also for Kafka's clients."""
    entry = ProducerEntry(ProducerEpoch(0), (), 1)

    assert (entry.next_sequence, entry.continued_sequence) == (0, 0)
