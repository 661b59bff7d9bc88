"""Stop of a loaded broker within ten seconds: waiting requests are answered and acknowledged records are kept."""

import asyncio
import signal
from contextlib import AsyncExitStack, suppress

import pytest

from broker_kit import Calls
from figures import record
from overload_kit import MIB, BrokerUnderLoad, now, one_batch, pause, until

pytestmark = [pytest.mark.slow, pytest.mark.prove]

STOP_SECONDS_MAX = 10.0


@pytest.mark.parametrize("signals", [pytest.param(1, marks=pytest.mark.scenario), 3])
async def test_stop_with_much_unsynced(start, full, signals) -> None:
    """A stopping broker answers long polls first, then all produce requests, regardless of later signals."""
    unsynced_mib = 250 if full else 40
    polls_count, producers = (500, 32) if full else (100, 8)
    broker = await start(sync_interval_seconds=600, unsynced_bytes_max=512 * MIB)
    async with AsyncExitStack() as stack:
        calls, *readers = [await stack.enter_async_context(Calls(broker.address)) for _ in range(4)]
        await calls.create("waiting", durability="replicated")
        await calls.create("kept", 4, durability="replicated", flush_ms=600_000)
        large = one_batch(MIB, 1)
        for number in range(unsynced_mib):
            assert (await calls.send("kept", large, number % 3)).status == 200
        polled: list[float] = []
        statuses: set[int] = set()
        acknowledged: list[int] = []

        async def poll(number: int) -> None:
            path = "/v1/topics/waiting/partitions/0/records?offset=0&max_wait_ms=60000"
            answer = await readers[number % 3].call("GET", path)
            polled.append(now())
            statuses.add(answer.status)

        async def produce() -> None:
            small = one_batch(1000, 1)
            with suppress(Exception):
                while (answer := await calls.send("kept", small, 3)).status == 200:
                    acknowledged.append(answer.json["base_offset"])

        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(poll(number)) for number in range(polls_count)]
            group.create_task(all_of(produce, producers))
            assert await until(lambda: broker.metric("fairlead_long_polls_waiting") == polls_count, 20)
            await pause(0.5)
            begun = now()
            for _ in range(signals - 1):
                assert broker.process is not None
                broker.process.send_signal(signal.SIGTERM)
                await pause(0.01)
            code, _ = await broker.stop(signal.SIGTERM)
            seconds = now() - begun
            await asyncio.gather(*waiting)
    clean = (broker.folder / "data" / ".fairlead" / "clean").exists()
    ends = await end_offsets(broker)
    if signals == 1:
        told = {"unsynced_mib": unsynced_mib, "long_polls": polls_count, "producers": producers}
        told |= {"seconds": round(seconds, 2), "polls_answered_after_s": round(max(polled) - begun, 2)}
        record("stop", told)

    assert code == 0
    assert seconds < STOP_SECONDS_MAX
    assert max(polled) - begun < 5
    assert statuses == {204}
    assert clean
    assert sum(ends[:3]) == unsynced_mib
    assert len(set(acknowledged)) == len(acknowledged)
    assert max(acknowledged) < ends[3]


async def all_of(work, count: int) -> None:
    """Run the same coroutine `count` times concurrently."""
    await asyncio.gather(*(work() for _ in range(count)))


async def end_offsets(broker: BrokerUnderLoad) -> list[int]:
    """Return the log end offsets of the partitions after a restart."""
    await broker.start()
    async with Calls(broker.address) as calls:
        paths = [f"/v1/topics/kept/partitions/{number}/offsets" for number in range(4)]
        return [(await calls.call("GET", path)).json["log_end_offset"] for path in paths]


async def test_readers_that_take_nothing_do_not_hold_up_a_stop(start) -> None:
    """A broker that is stopping waits until the deadline for answers in progress, and then closes its listener."""
    broker = await start()
    async with Calls(broker.address) as calls:
        await calls.create("large")
        for _ in range(32):
            await calls.send("large", one_batch(MIB, 1))
    connections = [broker.connect(receive_bytes=4096) for _ in range(20)]
    for connection in connections:
        head = b"GET /v1/topics/large/partitions/0/records?max_bytes=67108864 HTTP/1.1\r\nhost: localhost\r\n"
        head += b"accept: application/vnd.fairlead.batches\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(connection, head)
    await pause(0.5)
    code, seconds = await broker.stop(signal.SIGTERM)
    for connection in connections:
        connection.close()

    assert code == 0
    assert seconds < STOP_SECONDS_MAX
    assert (broker.folder / "data" / ".fairlead" / "clean").exists()


@pytest.mark.scenario
@pytest.mark.parametrize("descriptors", [0, 100], ids=["at once", "while partitions are recovered"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_during_the_start(start, number, descriptors, full) -> None:
    """A broker that gets a signal before it is ready stops soon, and starts again afterwards."""
    broker = await start()
    async with Calls(broker.address) as calls:
        await calls.create("many", 2000 if full else 400)
        stored = await calls.send("many", one_batch(10, 1))
    broker.kill()
    broker.spawn()
    assert await until(lambda: broker.descriptors > descriptors, 30)
    code, seconds = await broker.stop(number)
    told = broker.output()
    await broker.start()
    async with Calls(broker.address) as calls:
        again = await calls.send("many", one_batch(10, 1))

    assert stored.status == again.status == 200
    assert again.json["base_offset"] == 1
    # The signal itself ends the program before its handlers are installed.
    assert code in ({0} if descriptors else {0, -number, 128 + number})
    assert seconds < 5
    assert told.count(b"cluster_id") <= 1
