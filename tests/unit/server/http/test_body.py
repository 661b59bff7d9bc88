"""Reading of request bodies within their limits."""

import asyncio
from collections.abc import Iterable

import pytest

from fairlead_api.problems import ProblemError
from fairlead_broker.server.http import body as body_module
from fairlead_broker.server.http.asgi import Message
from fairlead_broker.server.http.body import UNKNOWN, BodyBudget, BodyLimits, BodyReader, ClientGone
from refusals import missing


class Chunks:
    """An ASGI receive channel that returns chunks, counts its calls, and then waits forever."""

    def __init__(self, chunks: Iterable[bytes], *, complete: bool = True, gone: bool = False) -> None:
        self.messages: list[Message] = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
        ]
        if complete:
            self.messages.append({"type": "http.request", "body": b"", "more_body": False})
        if gone:
            self.messages.append({"type": "http.disconnect"})
        self.asked = 0

    async def __call__(self) -> Message:
        """Return the next message."""
        if self.asked == len(self.messages):
            await asyncio.Event().wait()
        self.asked += 1
        return self.messages[self.asked - 1]


async def test_one_chunk_is_not_copied() -> None:
    """A body of one chunk is returned without a copy."""
    chunk = bytes(1000)

    assert await BodyReader(Chunks([chunk]), BodyBudget(BodyLimits(1 << 20))).read(1000, 1000) is chunk


async def test_chunks_are_joined() -> None:
    """Several chunks are joined into one body, without empty ones."""
    reader = BodyReader(Chunks([b"ab", b"", b"c"]), BodyBudget(BodyLimits(1 << 20)))

    assert await reader.read(None, 3) == b"abc"
    assert reader.complete


async def test_announced_too_large_is_refused_unread() -> None:
    """A body whose content-length exceeds the limit is refused before it is read."""
    chunks = Chunks([bytes(10)])
    with pytest.raises(ProblemError) as refused:
        await BodyReader(chunks, BodyBudget(BodyLimits(1 << 20))).read(11, 10)

    assert refused.value.code == "body_too_large"
    assert refused.value.data["limit_bytes"] == 10
    assert chunks.asked == 0


async def test_too_large_is_refused_at_the_limit() -> None:
    """A body without a content-length is read up to the chunk that exceeds the limit."""
    chunks = Chunks([bytes(8)] * 100)
    with pytest.raises(ProblemError) as refused:
        await BodyReader(chunks, BodyBudget(BodyLimits(1 << 20))).read(None, 20)

    assert refused.value.code == "body_too_large"
    assert chunks.asked == 3


async def test_the_end_is_not_waited_for_when_all_has_come() -> None:
    """A body with all announced bytes is complete without a final message."""
    chunks = Chunks([bytes(5), bytes(3)], complete=False)
    reader = BodyReader(chunks, BodyBudget(BodyLimits(1 << 20)))

    assert await reader.read(8, 20, ends_at_length=True) == bytes(8)
    await reader.ended()
    assert reader.complete
    assert chunks.asked == 2


async def test_an_answer_waits_for_the_end_of_a_body_that_is_used_before() -> None:
    """Over HTTP/2, a body with all announced bytes is returned at once, and `ended` waits for its end message."""
    arrive = asyncio.Event()
    messages = iter([{"body": bytes(8), "more_body": True}, {"body": b"", "more_body": False}])

    async def receive() -> Message:
        message: Message = {"type": "http.request", **next(messages)}
        if not message["more_body"]:
            await arrive.wait()
        return message

    reader = BodyReader(receive, BodyBudget(BodyLimits(1 << 20)))
    body = await reader.read(8, 20)
    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(reader.ended())
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        waited = not answering.done()
        arrive.set()

    assert (body, reader.complete, waited) == (bytes(8), True, True)


async def test_a_client_that_withholds_the_end_holds_neither_a_call_nor_memory_that_another_needs() -> None:
    """While an answer waits for an end message, its call is not counted, and its body ends in favour of another."""
    budget = BodyBudget(BodyLimits(100, produce_calls_max=1))
    waiting = BodyReader(Chunks([bytes(60)], complete=False), budget, ("10.0.0.1", 1))
    waiting.begin_call()
    await waiting.read(60, 100)
    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(waiting.ended())
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        calls, is_answered = budget.calls.calls, answering.done()
        other = BodyReader(Chunks([bytes(60)]), budget, ("10.0.0.2", 1))
        await other.read(60, 100)
    held_bytes = budget.held_bytes
    for reader in (waiting, other):
        reader.release()

    assert (calls, is_answered, held_bytes) == (0, False, 60)
    assert (budget.held_bytes, budget.calls.calls) == (0, 0)


async def test_an_answer_waits_for_a_missing_end_no_longer_than_for_a_piece_of_a_body() -> None:
    """A client that never ends its stream gets its answer after the time limit for a piece of a body."""
    limits = BodyLimits(1 << 20, body_idle_seconds_max=0.01)
    reader = BodyReader(Chunks([bytes(8)], complete=False), BodyBudget(limits))

    assert await reader.read(8, 20) == bytes(8)
    async with asyncio.timeout(30):
        await reader.ended()


async def test_client_gone_in_the_middle() -> None:
    """A body that ends before its announced length raises `ClientGone`."""
    reader = BodyReader(Chunks([b"half"], complete=False, gone=True), BodyBudget(BodyLimits(1 << 20)))
    with pytest.raises(ClientGone):
        await reader.read(8, 100)


async def test_all_bodies_share_a_budget() -> None:
    """A body that exceeds the common budget is refused as overloaded, and released bytes are available again."""
    budget = BodyBudget(BodyLimits(10))
    first, second = BodyReader(Chunks([bytes(8)]), budget), BodyReader(Chunks([bytes(8)]), budget)
    await first.read(8, 100)
    with pytest.raises(ProblemError) as refused:
        await second.read(8, 100)
    first.release()
    second.release()

    assert refused.value.code == "overloaded"
    assert refused.value.retry_after_seconds == 1
    assert budget.held_bytes == 0


@pytest.mark.parametrize(
    "limits",
    [BodyLimits(100, body_seconds_max=0.05), BodyLimits(100, body_idle_seconds_max=0.05)],
    ids=["total", "pause"],
)
async def test_trickling_body_ends(limits: BodyLimits) -> None:
    """A body that exceeds its time limit or pauses for too long is refused."""
    with pytest.raises(ProblemError) as refused:
        await BodyReader(Chunks([b"x"], complete=False), BodyBudget(limits)).read(8, 100)

    assert refused.value.code == "malformed_request"
    assert missing(refused.value.detail, 1) == []


async def test_new_bodies_leave_room_for_those_that_have_begun() -> None:
    """Above three quarters of the budget, a new body is refused unread, and a partly read body continues."""
    budget = BodyBudget(BodyLimits(100))
    begun = BodyReader(Chunks([bytes(70)]), budget)
    await begun.read(70, 100)
    late = Chunks([bytes(10)])
    with pytest.raises(ProblemError) as refused:
        await BodyReader(late, budget).read(10, 100)
    budget.take(30, UNKNOWN)

    assert (refused.value.code, late.asked) == ("overloaded", 0)
    assert budget.held_bytes == 100


def test_produce_calls_are_counted_until_they_are_released() -> None:
    """A produce call above the limit is refused, a released call frees its place, and a second release does nothing."""
    budget = BodyBudget(BodyLimits(100, produce_calls_max=1))
    first, second = BodyReader(Chunks([]), budget), BodyReader(Chunks([]), budget)
    first.begin_call()
    with pytest.raises(ProblemError) as refused:
        second.begin_call()
    second.release()
    first.release()
    first.release()
    second.begin_call()

    assert (refused.value.code, refused.value.retry_after_seconds) == ("overloaded", 1)
    assert budget.calls.calls == 1


async def test_drain_reads_a_little() -> None:
    """Before a refusal, the rest of a body is read: all of it if short, part of it if long, for a limited time."""
    short = BodyReader(Chunks([bytes(100)] * 3), BodyBudget(BodyLimits(1)))
    long_chunks = Chunks([bytes(1 << 16)] * 100)
    long = BodyReader(long_chunks, BodyBudget(BodyLimits(1)))
    stalled = BodyReader(Chunks([b"x"], complete=False), BodyBudget(BodyLimits(1)))
    await asyncio.wait_for(
        asyncio.gather(short.drain(1 << 18), long.drain(1 << 18), stalled.drain(1 << 18)), 5
    )

    assert short.complete
    assert not long.complete
    assert long_chunks.asked == 4


async def test_slow_bodies_do_not_count_while_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow body does not count as a produce call until it has arrived completely."""
    monkeypatch.setattr(body_module, "SLOW_BODY_SECONDS", 0.0)
    budget = BodyBudget(BodyLimits(100, produce_calls_max=1))
    arrive = asyncio.Event()

    async def receive() -> Message:
        await arrive.wait()
        return {"type": "http.request", "body": b"late", "more_body": False}

    slow, quick = BodyReader(receive, budget), BodyReader(receive, budget)
    slow.begin_call()
    reading = asyncio.ensure_future(slow.read(4, 100))
    while budget.calls.calls:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
    quick.begin_call()
    arrive.set()
    body = await reading
    both = budget.calls.calls
    slow.release()
    quick.release()

    assert (body, both, budget.calls.calls) == (b"late", 2, 0)


async def test_a_held_body_ends_in_favour_of_another_client() -> None:
    """If the budget is used up, incomplete bodies of the clients with the most bytes are refused and freed."""
    budget = BodyBudget(BodyLimits(100))
    whole = BodyReader(Chunks([bytes(60)], complete=False), budget, ("10.0.0.1", 1))
    lines = BodyReader(Chunks([bytes(40)], complete=False), budget, ("10.0.0.2", 1))
    other = BodyReader(Chunks([bytes(90)]), budget, ("10.0.0.3", 1))
    small = BodyReader(Chunks([bytes(10)]), budget, ("10.0.0.4", 1))
    await lines.next_piece()
    waiting = [asyncio.ensure_future(whole.read(None, 100)), asyncio.ensure_future(lines.next_piece())]
    async with asyncio.timeout(10):
        while budget.held_bytes < 100:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        with pytest.raises(ProblemError) as too_much:
            await other.read(90, 100)
        served = await small.read(10, 100)
        lines.end_early()
        lines.keep_only(5)
        refused = await asyncio.gather(*waiting, return_exceptions=True)
    for reader in (whole, lines, other, small):
        reader.release()

    assert too_much.value.code == "overloaded"
    assert len(served) == 10
    assert [problem.code for problem in refused if isinstance(problem, ProblemError)] == ["overloaded"] * 2
    assert budget.held_bytes == 0


async def test_a_stop_refuses_bodies_of_produce_calls_that_are_not_whole() -> None:
    """A stop refuses incomplete bodies of produce calls, new or already being received, and releases their bytes."""
    budget = BodyBudget(BodyLimits(100))
    whole, pieces, late = [BodyReader(Chunks([b"x"], complete=False), budget) for _ in range(3)]
    whole.begin_call()
    await pieces.next_piece()
    waiting = [asyncio.ensure_future(whole.read(8, 100)), asyncio.ensure_future(pieces.next_piece())]
    async with asyncio.timeout(10):
        while len(budget.coming) < 2:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        budget.stop()
        late.begin_call()
        refused = await asyncio.gather(*waiting, late.read(8, 100), late.next_piece(), return_exceptions=True)
    for reader in (whole, pieces, late):
        reader.release()

    assert [problem.code for problem in refused if isinstance(problem, ProblemError)] == ["shutting_down"] * 4
    assert (budget.held_bytes, budget.calls.calls, budget.coming) == (0, 0, set())


async def test_a_stop_lets_other_bodies_come() -> None:
    """A stop does not refuse bodies that are not produce calls, because followers need them to copy waiting records."""
    budget = BodyBudget(BodyLimits(100))
    budget.stop()

    assert await BodyReader(Chunks([b"x", b"y"]), budget).read(None, 100) == b"xy"


async def test_a_stop_meets_a_body_that_has_just_run_out_of_time() -> None:
    """A stop at the moment when a body times out refuses the body as shutting down."""
    budget = BodyBudget(BodyLimits(100, body_idle_seconds_max=0))
    reader = BodyReader(Chunks([], complete=False), budget)
    reader.begin_call()
    waiting = asyncio.ensure_future(reader.read(8, 100))
    async with asyncio.timeout(10):
        while not any(wait.expired() for wait in budget.coming):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        budget.stop()
        [refused] = await asyncio.gather(waiting, return_exceptions=True)

    assert isinstance(refused, ProblemError)
    assert refused.code == "shutting_down"
