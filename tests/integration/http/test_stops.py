"""Answers of a stopping broker to requests in flight."""

import asyncio

import msgspec
import pytest

from fairlead_api.bodies.frames import iterate_frames

PARTITION = "/v1/topics/flights/partitions/0/records"
EVENTS = {"accept": "text/event-stream"}
LIMITS = {"stop_answer_seconds": 60}
STOP_SECONDS_MAX = 30
"""Time limit of a stop, shorter than the time for which a stop waits for answers in progress, so that every answer must
end by itself.
"""


@pytest.mark.parametrize("three", [LIMITS], indirect=True)
async def test_polls_at_other_brokers_are_answered_first(three, polls) -> None:
    """Forwarded long polls and tails end at once with the stored records when a broker stops."""
    topic_id, [leader] = await three.topic("flights", 1)
    stopping = leader % 3 + 1
    api = three.at(stopping)
    many = {"max_wait_ms": 60_000, "partitions": [{"topic_id": topic_id, "partition": 0, "offset": 0}]}
    calls = [
        asyncio.ensure_future(call)
        for call in (
            api.get(f"{PARTITION}?offset=latest&max_wait_ms=60000"),
            api.post("/v1/fetch", many),
            api.get("/v1/topics/flights/records"),
            api.get("/v1/topics/flights/records", **EVENTS),
        )
    ]
    await polls(three.brokers[leader - 1], len(calls))
    async with asyncio.timeout(STOP_SECONDS_MAX):
        await three.brokers[stopping - 1].stop()
        one, several, lines, events = await asyncio.gather(*calls)
    [frame] = iterate_frames(several.body)

    assert (one.status, one.headers["fairlead-next-offset"]) == (204, "0")
    assert msgspec.json.decode(frame.meta)["next_offset"] == 0
    assert lines.json["problem"]["code"] == "shutting_down"
    assert events.body.startswith(
        b'id: 0:0\n\nevent: problem\ndata: {"problem":{"type":"/problems/shutting_down"'
    )


async def test_incomplete_bodies_are_refused(cluster) -> None:
    """A request with an incomplete body is refused by a stopping broker, and a stream of lines gets its result."""
    broker = await cluster.start(limits=LIMITS)
    await (await cluster.client(broker.addresses.data)).create("flights")
    host, _, port = broker.addresses.data.rpartition(":")
    slow, streaming = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    head = f"POST {PARTITION} HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
    slow[1].write(f"{head}application/json\r\ncontent-length: 15\r\n\r\n[{{".encode())
    streaming[1].write(
        f"{head}application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        + b'e\r\n{"value":"a"}\n\r\n'
    )
    told = await streaming[0].readuntil(b"]}\n")
    while len(broker.bodies.coming) < len((slow, streaming)):  # noqa: ASYNC110 - no event to await
        await asyncio.sleep(0)  # noqa: TID251 - yields to the broker's loop, does not wait
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.stop(broker))
        async with asyncio.timeout(STOP_SECONDS_MAX):
            refused = await slow[0].read()
            ended = await streaming[0].readuntil(b"0\r\n\r\n")
        # The server may keep the connection of an unfinished stream open, and would then wait for it to close.
        for _, writer in (slow, streaming):
            writer.close()

    assert b'"stored":1' not in told
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"shutting_down"' in refused
    assert b'"side_effect":"none"' in refused
    assert b'"code":"shutting_down"' in ended
    assert b'{"status":503,"records":1,"stored":1,"refused":0}\n' in ended
