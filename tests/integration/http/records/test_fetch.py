"""Fetching over HTTP: start, size, wait and form of the answer."""

import asyncio

import msgspec
import pyarrow as pa
import pytest

from fairlead_api.batch.batches import decode_records
from fairlead_api.batch.header import iterate_headers
from fairlead_api.bodies.frames import iterate_frames

RECORDS = "/v1/topics/flights/partitions/0/records"
BATCHES = "application/vnd.fairlead.batches"
ARROW = "application/vnd.apache.arrow.stream"
FRAMES = "application/vnd.fairlead.frames;v=1"


@pytest.fixture
async def ten(api, batch_of) -> str:
    """Return a topic with ten records in partition 0, b"0" to b"9", two per batch, with timestamps a second apart."""
    topic_id = await api.create("flights", 2)
    for first in range(0, 10, 2):
        batch = batch_of(
            b"%d" % first, b"%d" % (first + 1), timestamp_us=1_700_000_000_000_000 + first * 1_000_000
        )
        await api.post_batch(RECORDS, batch)
    return topic_id


def offsets(answer) -> list[int]:
    """Return the offsets of a JSON answer."""
    return [record["offset"] for record in answer.json["records"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", range(10)),
        ("offset=earliest", range(10)),
        ("offset=3", range(3, 10)),
        ("offset=-1", [9]),
        ("offset=-4", range(6, 10)),
        ("offset=-400", range(10)),
        ("timestamp=1700000004000", range(4, 10)),
        ("timestamp=2023-11-14T22:13:23Z", range(4, 10)),
        ("timestamp=0", range(10)),
    ],
)
async def test_where_a_fetch_starts(api, ten, query: str, expected) -> None:
    """A fetch as JSON begins exactly at the requested offset or time, even inside a batch."""
    answer = await api.get(f"{RECORDS}?{query}")

    assert offsets(answer) == list(expected)
    assert (answer.json["next_offset"], answer.json["high_watermark"], answer.json["log_start_offset"]) == (
        10,
        10,
        0,
    )


@pytest.mark.parametrize(
    "query", ["offset=latest", "offset=10", "offset=-0", "timestamp=2999-01-01T00:00:00Z"]
)
async def test_the_end_is_empty(api, ten, query: str) -> None:
    """A fetch at the end of the log is answered with 204 after its maximum wait, with the position in the headers."""
    answer = await api.get(f"{RECORDS}?{query}&max_wait_ms=10")

    assert (answer.status, answer.body) == (204, b"")
    assert {name: answer.headers[f"fairlead-{name}"] for name in (
        "next-offset", "high-watermark", "log-start-offset", "last-stable-offset", "topic-id"
    )} == {
        "next-offset": "10", "high-watermark": "10", "log-start-offset": "0", "last-stable-offset": "10",
        "topic-id": ten,
    }  # fmt: skip


async def test_binary_may_begin_below(api, ten) -> None:
    """A fetch in binary form returns whole stored batches, starting with the batch that contains the offset."""
    answer = await api.get(f"{RECORDS}?offset=3", accept=BATCHES)
    headers = [header for _, header in iterate_headers(answer.body)]

    assert answer.headers["content-type"] == BATCHES
    assert [header.base_offset for header in headers] == [2, 4, 6, 8]
    assert answer.headers["fairlead-next-offset"] == "10"


async def test_arrow_begins_exactly(api, ten) -> None:
    """The Arrow answer to a fetch opens in any Arrow reader, begins at the offset and has the offsets as a column."""
    answer = await api.get(f"{RECORDS}?offset=3", accept=ARROW)
    table = pa.ipc.open_stream(answer.body).read_all()

    assert table.schema.names == ["key", "value", "timestamp", "headers", "offset"]
    assert table.column("offset").to_pylist() == list(range(3, 10))
    assert table.column("value").to_pylist() == [b"%d" % number for number in range(3, 10)]


async def test_max_bytes_never_holds_back_the_first_batch(api, ten) -> None:
    """A fetch returns at least one batch, however small `max_bytes` is."""
    seen, offset = [], 0
    while offset < 10:
        answer = await api.get(f"{RECORDS}?offset={offset}&max_bytes=1", accept=BATCHES)
        seen += [record.value for record in decode_records(answer.body)]
        offset = int(answer.headers["fairlead-next-offset"])

    assert seen == [b"%d" % number for number in range(10)]


async def test_json_encodings(api) -> None:
    """`utf8` returns invalid UTF-8 as base64, `json` returns JSON values as JSON, and `base64` encodes every value."""
    await api.create("flights")
    await api.post(
        RECORDS, [{"key": "ü", "value": {"base64": "/wA="}, "headers": [["h", "1"]]}, {"value": '{"a": 1}'}]
    )
    shown = {
        encoding: [(record["key"], record["value"]) for record in (
            await api.get(f"{RECORDS}?encoding={encoding}")
        ).json["records"]]
        for encoding in ("utf8", "json", "base64")
    }  # fmt: skip

    assert shown == {
        "utf8": [("ü", {"base64": "/wA="}), (None, '{"a": 1}')],
        "json": [({"base64": "w7w="}, {"base64": "/wA="}), (None, {"a": 1})],
        "base64": [("w7w=", "/wA="), (None, "eyJhIjogMX0=")],
    }


async def test_long_poll_ends_with_records(api, ten, batch_of, broker, polls) -> None:
    """A long poll is answered when a record is stored, long before its maximum wait."""
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(api.get(f"{RECORDS}?offset=latest&max_wait_ms=60000"))
        await polls(broker, 1)
        group.create_task(api.post_batch(RECORDS, batch_of(b"new")))

    assert offsets(waiting.result()) == [10]


async def test_min_bytes(api, ten, batch_of, broker, polls) -> None:
    """A fetch with `min_bytes` waits until enough bytes are stored, or for its maximum wait."""
    some = await api.get(f"{RECORDS}?min_bytes=100000&max_wait_ms=50")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(
            api.get(f"{RECORDS}?offset=10&min_bytes=50000&max_wait_ms=60000", accept=BATCHES)
        )
        await polls(broker, 1)
        await api.post_batch(RECORDS, batch_of(b"small"))
        group.create_task(api.post_batch(RECORDS, batch_of(bytes(60_000))))

    assert offsets(some) == list(range(10))
    assert len(decode_records(waiting.result().body)) == 2


async def test_client_that_leaves_ends_its_poll(raw, broker, ten, polls) -> None:
    """A long poll ends when its client disconnects."""
    _, writer = await asyncio.open_connection(*raw.address.split(":"))
    writer.write(
        f"GET {RECORDS}?offset=latest&max_wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    )
    await polls(broker, 1)
    writer.close()

    await polls(broker, 0)


async def test_stop_answers_polls_first(cluster, polls) -> None:
    """A stopping broker answers long polls at once with the stored records, and stops in less than a second."""
    broker = await cluster.start()
    api = await cluster.client(broker.addresses.data)
    await api.create("flights")
    waiting = asyncio.ensure_future(api.get(f"{RECORDS}?max_wait_ms=60000"))
    await polls(broker, 1)
    async with asyncio.timeout(5):
        await cluster.stop(broker)
        answer = await waiting

    assert answer.status in {204, 503}


async def test_many_partitions(api, ten, batch_of) -> None:
    """A fetch of many partitions returns a frame for each, in order, including problems."""
    await api.post_batch("/v1/topics/flights/partitions/1/records", batch_of(b"x"))
    ghost = "00000000-0000-4000-8000-000000000000"
    request = {
        "max_wait_ms": 0,
        "partitions": [
            {"topic_id": ten, "partition": 1, "offset": 0},
            {"topic_id": ghost, "partition": 0, "offset": 0},
            {"topic_id": ten, "partition": 0, "offset": 4},
            {"topic_id": ten, "partition": 0, "offset": 99},
        ],
    }
    answer = await api.post("/v1/fetch", request)
    frames = [(msgspec.json.decode(frame.meta), frame.data) for frame in iterate_frames(answer.body)]

    assert answer.headers["content-type"] == FRAMES
    assert [(meta["topic_id"], meta["partition"]) for meta, _ in frames] == [
        (ten, 1),
        (ghost, 0),
        (ten, 0),
        (ten, 0),
    ]
    assert [record.value for record in decode_records(frames[0][1])] == [b"x"]
    assert frames[0][0]["next_offset"] == 1
    assert frames[1][0]["problem"]["code"] == "topic_not_found"
    assert [record.offset for record in decode_records(frames[2][1])] == list(range(4, 10))
    assert frames[2][0] | {"leader_epoch": 0} == {
        "topic_id": ten, "partition": 0, "next_offset": 10, "high_watermark": 10, "log_start_offset": 0,
        "last_stable_offset": 10, "leader_epoch": 0,
    }  # fmt: skip
    assert frames[3][0]["problem"]["code"] == "offset_out_of_range"


async def test_long_poll_over_many_partitions(api, ten, batch_of, broker, polls) -> None:
    """A long poll of many partitions is answered when any of them gets a record."""
    request = {
        "max_wait_ms": 60_000,
        "partitions": [
            {"topic_id": ten, "partition": p, "offset": offset} for p, offset in ((0, 10), (1, 0))
        ],
    }
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(api.post("/v1/fetch", request))
        await polls(broker, 1)
        group.create_task(api.post_batch("/v1/topics/flights/partitions/1/records", batch_of(b"new")))
    data = [frame.data for frame in iterate_frames(waiting.result().body)]

    assert [len(decode_records(part)) for part in data] == [0, 1]


async def test_large_answers_arrive_whole(api, batch_of) -> None:
    """A fetch of many MiB is answered in parts that equal the stored bytes."""
    topic_id = await api.create("flights")
    batches = [batch_of(bytes([number]) * 4_000_000) for number in range(5)]
    for batch in batches:
        await api.post_batch(RECORDS, batch)
    one = await api.get(f"{RECORDS}?max_bytes=50000000", accept=BATCHES)
    partitions = [{"topic_id": topic_id, "partition": 0, "offset": 0, "max_bytes": 50_000_000}]
    many = await api.post("/v1/fetch", {"max_bytes": 50_000_000, "partitions": partitions})
    [frame] = iterate_frames(many.body)

    assert len(one.body) == sum(map(len, batches))
    assert [record.value for record in decode_records(one.body)] == [bytes([n]) * 4_000_000 for n in range(5)]
    assert bytes(frame.data) == one.body
