"""The memory budget of fetch answers, and the readers that are cut off when it is used up."""

import pytest

from fairlead_broker.runtime.engine.budget import SMALL_ANSWER_BYTES, AnswerBudget

MIB = 1 << 20


class Watch:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


@pytest.fixture
def watch() -> Watch:
    """Return the clock of a budget."""
    return Watch()


@pytest.fixture
def budget(watch: Watch) -> AnswerBudget:
    """Return a budget of 8 MiB whose readers may stall for 3 seconds."""
    return AnswerBudget(8 * MIB, stall_seconds_max=3.0, now=watch)


def test_one_answer_gets_a_share(budget: AnswerBudget) -> None:
    """An answer gets at most a quarter of the free budget."""
    first = budget.hold()
    before = first.room()
    first.resize(before)

    assert before == 2 * MIB
    assert budget.hold().room() == 6 * MIB // 4
    first.release()
    first.release()
    assert (budget.taken, budget.hold().room()) == (0, 2 * MIB)


def test_small_answers_always_fit(budget: AnswerBudget) -> None:
    """An answer that is sent in one piece always fits, even when the budget is used up."""
    budget.hold().resize(9 * MIB)
    late = budget.hold()

    assert late.crowded
    assert late.room() == SMALL_ANSWER_BYTES


def test_stalled_readers_are_cut_off_when_it_is_crowded(budget: AnswerBudget, watch: Watch) -> None:
    """Only readers that have stalled for the given time are cut off, each once, and only when the budget is short."""
    cut: list[str] = []
    answers = {name: budget.hold() for name in ("stalled", "moving")}
    for name, answer in answers.items():
        answer.resize(4 * MIB)
        answer.sending(lambda name=name: cut.append(name))
    watch.now += 2
    answers["moving"].moved()
    watch.now += 2
    budget.room()
    budget.room()

    assert cut == ["stalled"]


def test_stalled_readers_are_left_alone_while_there_is_room(budget: AnswerBudget, watch: Watch) -> None:
    """A stalled reader is not cut off while the budget has room."""
    cut: list[str] = []
    answer = budget.hold()
    answer.resize(MIB)
    answer.sending(lambda: cut.append("slow"))
    watch.now += 50
    budget.room()

    assert cut == []


def test_a_reader_that_took_every_piece_is_not_cut_off(budget: AnswerBudget, watch: Watch) -> None:
    """A stream whose reader has taken every piece is not stalled, and its next piece starts a new interval."""
    cut: list[str] = []
    stream = budget.hold()
    stream.resize(8 * MIB)
    stream.sending(lambda: cut.append("first"))
    stream.sent()
    watch.now += 100
    budget.hold().room()
    stream.sending(lambda: cut.append("second"))
    budget.hold().room()
    quiet = list(cut)
    watch.now += 4
    budget.hold().room()

    assert (quiet, cut) == ([], ["second"])
