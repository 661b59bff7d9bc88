"""The state machine of a partition's producers: events in, effects out."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.producers import (
    Appended,
    KeyReused,
    OutOfOrder,
    PartitionProducers,
    ProducerFenced,
    ProducerState,
    TooManyKeys,
    UnknownProducer,
    stored_batch,
)
from fairlead_broker.producers.holding import HOLD_SECONDS
from fairlead_broker.producers.state import RETENTION_US, STEP_US_MAX
from producers_kit import FIRST_TIME_US, Shell


class TestSequences:
    """Sequences of batches (rules 6.1 and 6.2 of docs/explanation/simulation.md)."""

    def test_the_next_batch_is_appended(self, shell: Shell) -> None:
        """Batches with consecutive sequences and any number of records are appended."""
        shell.send(0, 3)
        shell.append()
        shell.send(3, 2)
        shell.append()

        assert [request.sequence for request in shell.log] == [0, 3]

    def test_append_times_do_not_go_back(self, shell: Shell) -> None:
        """While the clock is a little behind, the append time is the append time of the last batch."""
        shell.store(0)
        last = TimestampUs(shell.time_us)

        assert shell.machine.append_time_us(TimestampUs(last - 1)) == last
        assert shell.machine.append_time_us(TimestampUs(last + 1)) == last + 1

    def test_a_group_chains(self, shell: Shell) -> None:
        """Consecutive batches share one append, although none of them is stored yet."""
        requests = [shell.send(0, 2), shell.send(2, 1), shell.send(3, 4)]
        shell.append()

        assert [shell.answers[request] for request in requests] == [(0, 1), (2, 2), (3, 6)]

    def test_a_repeat_of_the_last_five_is_answered_with_its_offset(self, shell: Shell) -> None:
        """A repeat of any of the last five batches is answered with its offset every time, without an append."""
        shell.store(*range(7))
        repeats = [shell.send(sequence) for sequence in (2, 6, 2, 4)]

        assert [shell.answers[repeat] for repeat in repeats] == [(2, 2), (6, 6), (2, 2), (4, 4)]
        assert shell.group == []

    def test_a_repeat_older_than_five_is_refused(self, shell: Shell) -> None:
        """A repeat older than five batches is refused, and the refusal contains the expected sequence."""
        shell.store(*range(7))
        late = shell.send(1)

        assert shell.answers[late] == OutOfOrder(7, 0, 1, 7)

    def test_a_batch_cut_differently_is_no_repeat(self, shell: Shell) -> None:
        """A batch with a stored first sequence but another record count is refused, because part of it is stored."""
        shell.send(0, 3)
        shell.append()
        cut = shell.send(0, 2)

        assert shell.answers[cut] == OutOfOrder(7, 0, 0, 3)

    def test_a_repeat_in_the_same_group_follows_its_original(self, shell: Shell) -> None:
        """A repeat in the same append gets the result of its original."""
        first, second = shell.send(0), shell.send(0)
        third = shell.send(1)
        shell.append()

        assert (shell.answers[first], shell.answers[second], shell.answers[third]) == ((0, 0), (0, 0), (1, 1))
        assert len(shell.log) == 2

    def test_a_repeat_of_a_stored_batch_beside_an_ordered_one(self, shell: Shell) -> None:
        """A stored batch is recognised while another append runs."""
        shell.store(0)
        shell.send(1)
        repeat = shell.send(0)
        other = shell.send(1, 2)

        assert shell.answers[repeat] == (0, 0)
        assert shell.answers[other] == OutOfOrder(7, 0, 1, 2)

    def test_a_failed_append_leaves_no_trace(self, shell: Shell) -> None:
        """A failed append fails its batches, their repeats and later batches, and leaves the state unchanged."""
        shell.store(0)
        failed = [shell.send(1), shell.send(1), shell.send(2)]
        shell.fail()
        again = [shell.send(1), shell.send(2)]
        shell.append()

        assert [shell.answers[request] for request in failed] == [None] * 3
        assert [shell.answers[request] for request in again] == [(1, 1), (2, 2)]

    def test_a_failed_first_batch_leaves_its_producer_unknown(self, shell: Shell) -> None:
        """A failed first batch leaves its producer unknown, so that only sequence 0 is accepted."""
        shell.send(0)
        shell.fail()
        waiting = shell.send(1)
        shell.wait(HOLD_SECONDS)

        assert shell.answers[waiting] == UnknownProducer(7, 0, 1)

    def test_sequences_wrap(self) -> None:
        """Sequences wrap within a batch and between two batches."""
        state = ProducerState()
        state.replay(ProducerId(7), ProducerEpoch(0), stored_batch(2**31 - 5, 1, 0, 1))
        shell = Shell(PartitionProducers(state))
        inside = shell.send(2**31 - 3, 5)
        behind = shell.send(2)
        shell.append()
        repeat = shell.send(2**31 - 3, 5)

        assert [shell.answers[request] for request in (inside, behind, repeat)] == [(0, 4), (5, 5), (0, 4)]


class TestHolding:
    """Batches that overtake each other over HTTP/2."""

    @pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::5])
    def test_five_in_any_order_become_the_log_of_the_sender(
        self, shell: Shell, order: tuple[int, ...]
    ) -> None:
        """Five batches that arrive in any order are appended in the order of their sequences."""
        for sequence in order:
            shell.send(sequence)
        shell.append()

        assert [request.sequence for request in shell.log] == list(range(5))
        assert shell.machine.held_count == 0

    def test_a_held_batch_is_released_with_all_behind_it(self, shell: Shell) -> None:
        """A held batch is released together with all held batches that follow it."""
        shell.store(0)
        held = [shell.send(sequence) for sequence in (4, 2, 3)]
        assert list(shell.machine.held()) == held
        shell.send(1)

        assert [request.sequence for request in shell.group] == [1, 2, 3, 4]

    def test_four_wait_and_the_fifth_is_refused(self, shell: Shell) -> None:
        """Four batches are held and the fifth is refused, because a producer has at most five in flight."""
        shell.store(0)
        held = [shell.send(sequence) for sequence in range(2, 6)]
        fifth = shell.send(6)

        assert shell.answers[fifth] == OutOfOrder(7, 0, 6, 1)
        assert list(shell.machine.held()) == held

    def test_a_second_and_no_longer(self, shell: Shell) -> None:
        """Each batch is held for one second from its own arrival, and then refused with the expected sequence."""
        shell.store(0)
        first = shell.send(2)
        shell.wait(HOLD_SECONDS / 2)
        second = shell.send(3)
        shell.wait(HOLD_SECONDS / 2)

        assert shell.answers[first] == OutOfOrder(7, 0, 2, 1)
        assert second not in shell.answers
        assert shell.machine.next_deadline() == shell.now + HOLD_SECONDS / 2

    def test_a_withdrawn_batch_is_not_appended(self, shell: Shell) -> None:
        """A held batch is not appended if its request was cancelled."""
        shell.store(0)
        gone = shell.send(2)
        shell.withdraw(gone)
        shell.send(1)
        shell.append()
        shell.withdraw(gone)

        assert [request.sequence for request in shell.log] == [0, 1]

    def test_a_repeat_of_a_held_batch_is_held_too(self, shell: Shell) -> None:
        """A repeat of a held batch is also held, and gets the same answer."""
        shell.store(0)
        held, repeat = shell.send(2), shell.send(2)
        shell.send(1)
        shell.append()

        assert shell.answers[held] == shell.answers[repeat] == (2, 2)
        assert len(shell.log) == 3

    def test_producers_do_not_wait_for_each_other(self, shell: Shell) -> None:
        """A batch that waits for its producer's sequence neither delays nor is released by other producers."""
        shell.store(0)
        held = shell.send(2)
        other = shell.send(0, producer_id=8)
        shell.append()

        assert shell.answers[other] == (1, 1)
        assert list(shell.machine.held()) == [held]


class TestEpochs:
    """Unknown producers and producer epochs."""

    def test_an_unknown_producer_begins_at_zero(self, shell: Shell) -> None:
        """An unknown producer begins at sequence 0, and a later batch waits for that sequence before it is refused."""
        waiting = shell.send(3)
        shell.wait(HOLD_SECONDS)

        assert shell.answers[waiting] == UnknownProducer(7, 0, 3)

    def test_a_higher_epoch_begins_at_zero(self, shell: Shell) -> None:
        """A higher epoch begins at sequence 0, for which later batches wait while the lower epoch is accepted."""
        shell.store(0)
        early = shell.send(1, epoch=1)
        lower = shell.send(1)
        shell.send(0, epoch=1)
        shell.append()

        assert shell.answers[lower] == (1, 1)
        assert shell.answers[early] == (3, 3)

    def test_a_higher_epoch_without_its_zero_is_unknown(self, shell: Shell) -> None:
        """A batch of a higher epoch without its sequence 0 is refused as unknown."""
        shell.store(0)
        waiting = shell.send(4, epoch=1)
        shell.wait(HOLD_SECONDS)

        assert shell.answers[waiting] == UnknownProducer(7, 1, 4)

    def test_a_lower_epoch_is_fenced(self, shell: Shell) -> None:
        """New, repeated and held batches of a lower epoch are fenced after the first batch of a higher epoch."""
        shell.store(0, 1)
        held = shell.send(3)
        shell.send(0, epoch=4)
        shell.append()
        new, repeat = shell.send(2), shell.send(1)

        assert {shell.answers[request] for request in (held, new, repeat)} == {ProducerFenced(7, 0, 4)}

    def test_repeats_of_a_new_epoch_are_not_those_of_the_old_one(self, shell: Shell) -> None:
        """Sequence 0 of epoch 1 is not a repeat of sequence 0 of epoch 0, before and after its append."""
        shell.store(0)
        new, repeat = shell.send(0, epoch=1), shell.send(0, epoch=1)
        other = shell.send(0, 2, epoch=1)
        shell.append()

        assert (shell.answers[new], shell.answers[repeat]) == ((1, 1), (1, 1))
        assert shell.answers[other] == OutOfOrder(7, 1, 0, 1)

    def test_an_expired_producer_is_unknown(self, shell: Shell) -> None:
        """A producer becomes unknown after a day of appends without a batch from it."""
        shell.store(0)
        assert shell.machine.knows_producer(ProducerId(7))
        for age_us in range(0, RETENTION_US + STEP_US_MAX, STEP_US_MAX // 2):
            shell.machine.step(Appended([], [], TimestampUs(shell.time_us + age_us)))
        late = shell.send(1)
        shell.wait(HOLD_SECONDS)

        assert shell.answers[late] == UnknownProducer(7, 0, 1)
        assert not shell.machine.knows_producer(ProducerId(7))


class TestKeys:
    """Requests with an idempotency key."""

    def test_a_repeat_is_answered_with_the_first_offsets(self, shell: Shell) -> None:
        """A repeat with a known key gets the original offsets, in the same append and later."""
        first, beside = shell.send_key(b"k"), shell.send_key(b"k")
        shell.append()
        later = shell.send_key(b"k")

        assert shell.answers[first] == shell.answers[beside] == shell.answers[later] == (0, 0)
        assert len(shell.log) == 1

    def test_another_body_is_refused(self, shell: Shell) -> None:
        """A known key with a different body is refused, both while the first append runs and later."""
        shell.send_key(b"k", b"one")
        assert shell.machine.digest_of(b"k") == b"one"
        beside = shell.send_key(b"k", b"two")
        shell.append()
        later = shell.send_key(b"k", b"two")

        assert shell.answers[beside] == shell.answers[later] == KeyReused(b"k")
        assert (shell.machine.digest_of(b"k"), shell.machine.digest_of(b"other")) == (b"one", None)

    def test_a_failed_append_frees_the_key(self, shell: Shell) -> None:
        """A failed append releases the key, so that it can be used with a different body."""
        shell.send_key(b"k", b"one")
        shell.fail()
        other = shell.send_key(b"k", b"two")
        shell.append()

        assert shell.answers[other] == (0, 0)

    def test_a_partition_remembers_so_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A partition at its maximum of keys refuses new keys until the oldest key expires, and answers known keys."""
        monkeypatch.setattr("fairlead_broker.producers.partition_producers.KEYS_MAX", 2)
        state = ProducerState()
        state.replay_key(b"old", b"body", Offset(4), Offset(5), TimestampUs(1_000_000))
        state.advance(11_000_000)
        shell = Shell(PartitionProducers(state))
        shell.send_key(b"new")
        refused, known = shell.send_key(b"more"), shell.send_key(b"old")

        assert shell.answers[refused] == TooManyKeys(2, RETENTION_US / 1e6 - 10)
        assert shell.answers[known] == (4, 5)

    def test_keys_that_are_all_on_their_way_take_a_day(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A partition whose keys are all in flight reports one day as the time until a retry."""
        monkeypatch.setattr("fairlead_broker.producers.partition_producers.KEYS_MAX", 1)
        shell.send_key(b"a")
        refused = shell.send_key(b"b")

        assert shell.answers[refused] == TooManyKeys(1, RETENTION_US / 1e6)


def test_keys_and_sequences_share_a_group(shell: Shell) -> None:
    """The offsets of `Appended` go to the right requests if an append includes keys and sequences."""
    shell.send(0, 2)
    key = shell.send_key(b"k")
    shell.send(2, 3)
    shell.append()
    repeats = shell.send(2, 3), shell.send_key(b"k")

    assert [shell.answers[request] for request in (*repeats, key)] == [(3, 5), (2, 2), (2, 2)]


@given(
    batches=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
    failing=st.floats(0, 0.4),
    losing=st.floats(0, 0.4),
    start=st.sampled_from([0, 2**31 - 20]),
)
def test_any_arrival_order_within_the_window_gives_the_log_in_order_exactly_once(
    batches: list[int], seed: int, failing: float, losing: float, start: int
) -> None:
    """If requests are repeated, reordered and duplicated by the network, each batch is stored once, in order."""
    chance = random.Random(seed)
    state = ProducerState()
    if start:
        state.replay(ProducerId(7), ProducerEpoch(0), stored_batch(start - 1, 0, 0, FIRST_TIME_US))
    shell = Shell(PartitionProducers(state))
    sequences = [(start + sum(batches[:number])) % 2**31 for number in range(len(batches))]
    base = {number: sum(batches[:number]) for number in range(len(batches))}
    acknowledged = 0
    for _ in range(100 * len(batches)):
        if acknowledged == len(batches):
            break
        window = list(range(acknowledged, min(acknowledged + 5, len(batches))))
        sent = [number for number in window if chance.random() >= losing] + [
            number for number in window if chance.random() < 0.2
        ]
        chance.shuffle(sent)
        answers = []
        for number in sent:
            answers.append((number, shell.send(sequences[number], batches[number])))
            if chance.random() < 0.3:
                shell.fail() if chance.random() < failing else shell.append()
        shell.fail() if chance.random() < failing else shell.append()
        shell.wait(2 * HOLD_SECONDS)
        stored = {number for number, request in answers if isinstance(shell.answers.get(request), tuple)}
        for number, request in answers:
            if number in stored and isinstance(shell.answers[request], tuple):
                assert shell.answers[request] == (base[number], base[number] + batches[number] - 1)
        while acknowledged in stored:
            acknowledged += 1

    assert acknowledged == len(batches)
    assert [(request.sequence, request.count) for request in shell.log] == list(
        zip(sequences, batches, strict=True)
    )
