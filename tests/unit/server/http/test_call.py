"""The pieces in which an answer is sent, and the values that a call reads from the request's path."""

import asyncio
from functools import partial

import pytest

from fairlead_api.problems import ProblemError
from fairlead_broker.runtime.engine.budget import AnswerBudget, HeldAnswer
from fairlead_broker.server.http.asgi import Message
from fairlead_broker.server.http.body import BodyBudget, BodyLimits
from fairlead_broker.server.http.call import (
    PART_BYTES_MAX,
    TAIL_PART_BYTES,
    TAIL_PARTS,
    Call,
    ReaderStalled,
    pieces_of,
)


async def never() -> Message:
    """Fail, because the tests read no body."""
    raise AssertionError("the head is enough")


class Sent:
    """An ASGI send channel that records its messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        """Record a message."""
        self.messages.append(message)


def call_of(sent: Sent, method: str = "GET", **headers: str) -> Call:
    """Return a call with the given headers."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Call({"method": method, "headers": pairs}, never, sent, BodyBudget(BodyLimits()))


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1],
        [PART_BYTES_MAX],
        [PART_BYTES_MAX - 1, 1, 1],
        [10, 3 * PART_BYTES_MAX + 7, 0, 5],
        [100] * 5_000,
        [PART_BYTES_MAX, PART_BYTES_MAX],
    ],
    ids=str,
)
def test_pieces_are_full_and_complete(sizes: list[int]) -> None:
    """All pieces except small last ones have the maximum size, and together they contain the bytes of the parts."""
    parts = [memoryview(bytes([number % 251]) * size) for number, size in enumerate(sizes)]
    pieces = list(pieces_of(parts))

    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) == PART_BYTES_MAX for piece in pieces[: -TAIL_PARTS - 1])
    assert sum(map(len, pieces[-TAIL_PARTS:])) <= TAIL_PARTS * TAIL_PART_BYTES
    assert all(0 < len(piece) <= PART_BYTES_MAX and type(piece) is bytes for piece in pieces)


async def test_answer_in_parts() -> None:
    """An answer in parts has its length in the headers, and ends with its last part."""
    sent = Sent()
    await call_of(sent).answer_parts(200, [], [bytes(PART_BYTES_MAX), b"rest"])
    start, *bodies = sent.messages

    assert dict(start["headers"])[b"content-length"] == b"%d" % (PART_BYTES_MAX + 4)
    assert [body["more_body"] for body in bodies] == [True] * TAIL_PARTS + [False]
    assert sum(len(body["body"]) for body in bodies) == PART_BYTES_MAX + 4


async def test_answer_of_nothing_ends() -> None:
    """An answer without parts is completed with an empty last piece."""
    sent = Sent()
    await call_of(sent).answer_parts(200, [], [])

    assert sent.messages[1:] == [{"type": "http.response.body", "body": b""}]


async def test_head_has_no_body() -> None:
    """An answer to HEAD has the length of the body and no body."""
    sent = Sent()
    await call_of(sent, "HEAD").answer_json({"a": 1})

    assert dict(sent.messages[0]["headers"])[b"content-length"] == b"7"
    assert sent.messages[1]["body"] == b""


@pytest.mark.parametrize("text", ["-1", "x", "", "1.5", "2147483648", "99999999999", "٣"])
def test_partition_must_be_a_number(text: str) -> None:
    """An invalid partition index is refused, and the problem names the parameter."""
    call = call_of(Sent())
    call.parameters = {"partition": text}
    with pytest.raises(ProblemError) as refused:
        _ = call.partition

    assert refused.value.code == "malformed_request"
    assert refused.value.data["parameter"] == "partition"


class _Cutter(HeldAnswer):
    """A held answer that records the timeout of its reader."""

    def sending(self, cut: partial[None]) -> None:  # type: ignore[override]
        """Begin to send the answer, and record the timeout."""
        self.wait: asyncio.Timeout = cut.args[0]
        super().sending(cut)


@pytest.mark.parametrize("streams", [True, False], ids=["piece", "pieces"])
@pytest.mark.parametrize("late", [True, False], ids=["as its time ends", "in time"])
async def test_a_reader_that_stalls_is_given_up(*, streams: bool, late: bool) -> None:
    """A stalled reader is cut off by the budget or by its timeout, even if both happen at once."""

    async def dropped(_: Message) -> None:
        await asyncio.Event().wait()

    started = Sent()
    call = Call(
        {"method": "GET", "headers": []}, never, started, BodyBudget(BodyLimits()), 0 if late else 1000
    )
    held = call.held = _Cutter(AnswerBudget(1, stall_seconds_max=0, now=lambda: 0.0))
    call._send = dropped
    sending = call.send_piece(b"x") if streams else call._send_pieces([b"x"], 1)
    waiting = asyncio.ensure_future(sending)
    async with asyncio.timeout(10):
        while not hasattr(held, "wait") or held.wait.expired() != late:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        held.cut_off()
        with pytest.raises(ReaderStalled):
            await waiting
