"""The state of producers: it survives kills, and has a limited lifetime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker_kit import BrokerProgram, Calls, sequenced
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.clock import SystemClock
from fairlead_broker.wiring.start import RunningBroker

StartBroker = Callable[..., Awaitable[RunningBroker]]
Connect = Callable[[str], Awaitable[Calls]]
DAY_US = 24 * 3600 * 1_000_000


async def _send_until_killed(address: str, first: int, count: int, acknowledged: list[int]) -> None:
    """Send batches sequentially and record the acknowledged batches, until the broker is killed."""
    async with Calls(address) as calls:
        for sequence in range(first, first + count):
            answer = await calls.send("flights", sequenced(sequence, [b"%d" % sequence]))
            assert answer.status == 200, answer
            acknowledged.append(sequence)


@pytest.mark.scenario
@pytest.mark.slow
async def test_kill_between_send_and_answer_then_repeat(program: BrokerProgram) -> None:
    """Batches are stored once and in order despite five kills, each followed by a repeat of all unanswered batches."""
    await program.start()
    async with Calls(program.address) as calls:
        await calls.create("flights", segment_bytes=1 << 20)
    acknowledged: list[int] = []
    for life in range(5):
        sender = asyncio.ensure_future(
            _send_until_killed(program.address, len(acknowledged), 10_000, acknowledged)
        )
        wanted = len(acknowledged) + 20 + 13 * life
        while len(acknowledged) < wanted and not sender.done():
            await asyncio.wait({sender}, timeout=0.002)
        program.kill()
        with pytest.raises(Exception):  # noqa: B017, PT011 - any error that a lost connection causes
            await sender
        await program.start()
        async with Calls(program.address) as calls:
            repeat = len(acknowledged)
            answer = await calls.send("flights", sequenced(repeat, [b"%d" % repeat]))
            assert answer.status == 200, answer
            acknowledged.append(repeat)
            assert await calls.values("flights") == [b"%d" % sequence for sequence in acknowledged]


async def test_a_kill_keeps_the_keys(program: BrokerProgram) -> None:
    """A request that is repeated with the same idempotency key after a kill gets the original offsets."""
    await program.start()
    body = {"records": [{"key": "a", "value": "1"}, {"value": "2"}]}
    async with Calls(program.address) as calls:
        await calls.create("orders", 3)
        first = await calls.post("/v1/topics/orders/records", body, idempotency_key="order-17")
    program.kill()
    await program.start()
    async with Calls(program.address) as calls:
        second = await calls.post("/v1/topics/orders/records", body, idempotency_key="order-17")
        stored = [value for partition in range(3) for value in await calls.values("orders", partition)]

    assert first.status == second.status == 200
    assert all(result["duplicate"] for result in second.json["results"])
    assert [r["base_offset"] for r in first.json["results"]] == [
        r["base_offset"] for r in second.json["results"]
    ]
    assert sorted(stored) == [b"1", b"2"]


class MovingClock:
    """System clock whose wall time a test can change."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.ahead_us = 0

    def now_us(self) -> TimestampUs:
        """Return the moved wall time."""
        return TimestampUs(self._real.now_us() + self.ahead_us)

    def monotonic(self) -> float:
        """Return the system's monotonic time, which no test moves."""
        return self._real.monotonic()


HOUR_US = 3600 * 1_000_000
PATH = "/v1/topics/flights/partitions/0/records"


@pytest.mark.slow
async def test_state_expires_after_a_day_of_appends(start: StartBroker, connect: Connect) -> None:
    """A producer's state expires when its partition's append times have advanced by a day, regardless of the clock."""
    clock = MovingClock()
    api = await connect(str((await start(clock)).addresses.data))
    await api.create("flights", message_timestamp_after_max_ms=2**40)
    body = [{"value": "keyed"}]
    await api.send("flights", sequenced(0, [b"0"]))
    await api.post(PATH, body, idempotency_key="once")
    clock.ahead_us = 3 * DAY_US
    idle = [
        await api.send("flights", sequenced(0, [b"0"])),
        await api.post(PATH, body, idempotency_key="once"),
    ]
    for hour in range(26):
        clock.ahead_us += HOUR_US
        await api.send("flights", sequenced(hour, [b"another"], producer_id=8))
    later = [
        await api.send("flights", sequenced(1, [b"1"])),
        await api.post(PATH, body, idempotency_key="once"),
    ]
    api = await connect(str((await start(clock)).addresses.data))
    restarted = await api.send("flights", sequenced(1, [b"1"]))

    assert [answer.json["duplicate"] for answer in idle] == [True, True]
    assert later[0].code == "unknown_producer"
    assert (later[1].status, later[1].json["duplicate"]) == (200, False)
    assert restarted.code == "unknown_producer"
    assert await api.values("flights") == [b"0", b"keyed", *[b"another"] * 26, b"keyed"]


@pytest.mark.parametrize("jump_us", [25 * HOUR_US, 400 * DAY_US, -25 * HOUR_US])
async def test_a_jump_of_the_clock_stores_nothing_twice(
    start: StartBroker, connect: Connect, jump_us: int
) -> None:
    """Batches and keys from before, during and after a jump of the clock are recognised, even after a restart."""
    clock = MovingClock()
    api = await connect(str((await start(clock)).addresses.data))
    await api.create("flights", message_timestamp_after_max_ms=2**40)
    answers = []
    for sequence, ahead_us in enumerate((0, jump_us, 0)):
        clock.ahead_us = ahead_us
        answers.append(await api.send("flights", sequenced(sequence, [b"%d" % sequence])))
        answers.append(await api.post(PATH, [{"value": "keyed"}], idempotency_key=f"key-{sequence}"))
    repeats = []
    for _ in range(2):
        for sequence in range(3):
            repeats.append(await api.send("flights", sequenced(sequence, [b"%d" % sequence])))
            repeats.append(await api.post(PATH, [{"value": "keyed"}], idempotency_key=f"key-{sequence}"))
        api = await connect(str((await start(clock)).addresses.data))

    assert [answer.json["duplicate"] for answer in answers] == [False] * 6
    assert [answer.json["duplicate"] for answer in repeats] == [True] * 12
    assert await api.values("flights") == [b"0", b"keyed", b"1", b"keyed", b"2", b"keyed"]
