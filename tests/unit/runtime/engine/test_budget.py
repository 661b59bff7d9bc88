"""What answers may hold, and who is cut off when they hold all of it."""

import pytest

from fairlead_broker.runtime.engine.budget import SMALL_ANSWER_BYTES, AnswerBudget, ByteBudget

MIB = 1 << 20


class Watch:
    """A time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now


@pytest.fixture
def watch() -> Watch:
    """The time of a budget."""
    return Watch()


@pytest.fixture
def budget(watch: Watch) -> AnswerBudget:
    """A budget of 8 MiB whose readers may stall for 3 seconds."""
    return AnswerBudget(8 * MIB, stall_seconds_max=3.0, now=watch)


def test_bytes_are_taken_up_to_the_bound() -> None:
    """The first batch always fits, further ones only below the bound, and what is given back is free again."""
    budget = ByteBudget(10)

    assert budget.take(15)
    assert not budget.take(1)
    budget.give_back(15)
    assert budget.take(10)


def test_one_answer_gets_a_share(budget: AnswerBudget) -> None:
    """A quarter of what is free, so that the next one gets something too."""
    first = budget.hold()
    before = first.room()
    first.resize(before)

    assert before == 2 * MIB
    assert budget.hold().room() == 6 * MIB // 4
    first.release()
    first.release()
    assert (budget.taken, budget.hold().room()) == (0, 2 * MIB)


def test_small_answers_always_fit(budget: AnswerBudget) -> None:
    """However much is held, an answer that is sent in one piece may be read."""
    budget.hold().resize(9 * MIB)
    late = budget.hold()

    assert late.crowded
    assert late.room() == SMALL_ANSWER_BYTES


def test_stalled_readers_are_cut_off_when_it_is_crowded(budget: AnswerBudget, watch: Watch) -> None:
    """Only those that took nothing for the time, each once, and only when others want room."""
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
    """A slow reader harms nobody then."""
    cut: list[str] = []
    answer = budget.hold()
    answer.resize(MIB)
    answer.sending(lambda: cut.append("slow"))
    watch.now += 50
    budget.room()

    assert cut == []


def test_who_took_all_so_far_is_not_cut_off(budget: AnswerBudget, watch: Watch) -> None:
    """A stream that waits for more to send has no reader that stalls, however long; its next piece counts anew."""
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
