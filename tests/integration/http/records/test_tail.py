"""Following a topic over HTTP: lines and events, all partitions, start, end and failures."""

import asyncio

import msgspec
import pytest

TAIL = "/v1/topics/flights/records"
EVENTS = {"accept": "text/event-stream"}


@pytest.fixture
async def six(api) -> str:
    """Return a topic of two partitions with three records each, 0 to 2 and 10 to 12."""
    topic_id = await api.create("flights", 2)
    for partition in range(2):
        for number in range(3):
            await put(api, partition, 10 * partition + number)
    return topic_id


async def put(api, partition: int, number: int) -> None:
    """Store one record."""
    stored = await api.post(
        f"/v1/topics/flights/partitions/{partition}/records", [{"key": "k", "value": str(number)}]
    )
    assert stored.status == 200, stored


def lines(answer) -> list[dict]:
    """Return the documents in an answer that consists of lines."""
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [msgspec.json.decode(line) for line in answer.body.splitlines()]


def events(answer) -> list[tuple[str, dict | None]]:
    """Return id and data of each event of an answer."""
    assert answer.headers["content-type"] == "text/event-stream"
    found = []
    for block in answer.body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            data = fields.get("data")
            found.append((fields.get("id", ""), None if data is None else msgspec.json.decode(data)))
    return found


async def test_lines_of_all_partitions(api, six) -> None:
    """A tail sends each record once, in order within its partition, and ends with the last requested record."""
    answer = await api.get(f"{TAIL}?from=earliest&max_records=6")

    assert answer.status == 200
    assert answer.headers["fairlead-topic-id"] == six
    told = lines(answer)
    assert [record["value"] for record in told if record["partition"] == 0] == ["0", "1", "2"]
    assert [record["value"] for record in told if record["partition"] == 1] == ["10", "11", "12"]
    assert told[0] == {
        "partition": 0, "offset": 0, "timestamp": told[0]["timestamp"], "key": "k", "value": "0", "headers": []
    }  # fmt: skip


async def test_latest_sends_new_records(api, six) -> None:
    """A tail without `from` sends only records stored after it began, and ends after the requested seconds."""
    following = asyncio.create_task(api.call("GET", f"{TAIL}?max_records=2", headers=EVENTS))
    sent = 0
    while not following.done():
        await put(api, 1, 100 + sent)
        sent += 1
    [(start, nothing), *told] = events(await following)

    assert nothing is None
    assert start.startswith("0:3,1:")
    first = int(start.split(":")[-1])
    assert [(each, record["offset"]) for each, record in told] == [
        (f"0:3,1:{first + 1}", first),
        (f"0:3,1:{first + 2}", first + 1),
    ]
    assert lines(await api.get(f"{TAIL}?max_seconds=1")) == []


async def test_a_reader_that_returns_continues(api, six) -> None:
    """A tail continues at any event id without repeats or gaps, and also reads the partitions that the id lacks."""
    seen = events(await api.call("GET", f"{TAIL}?from=earliest&max_records=4", headers=EVENTS))
    rest = await api.call("GET", f"{TAIL}?max_records=2", headers={**EVENTS, "last-event-id": seen[-1][0]})
    half = await api.call("GET", f"{TAIL}?from=earliest&max_records=4", headers={"last-event-id": "1:2"})

    told = [record["value"] for _, record in [*seen, *events(rest)] if record]
    assert sorted(told, key=int) == ["0", "1", "2", "10", "11", "12"]
    assert sorted(record["value"] for record in lines(half)) == ["0", "1", "12", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["x", "0", "0:1,", "0:1,0:2", "2:0", "0:-1", "0:" + "9" * 19])
async def test_an_unknown_event_id(api, six, wrong: str) -> None:
    """A tail with an invalid event id is refused, and the refusal names the header."""
    answer = await api.get(TAIL, last_event_id=wrong)

    assert (answer.status, answer.code) == (400, "malformed_request")
    assert answer.json["parameter"] == "Last-Event-ID"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("from=middle", 400, "malformed_request"),
        ("max_seconds=0", 400, "malformed_request"),
        ("max_records=0", 400, "malformed_request"),
        ("offset=3", 422, "unknown_option"),
    ],
)
async def test_wrong_parameters(api, six, query: str, status: int, code: str) -> None:
    """A tail with invalid parameters is refused before its answer begins."""
    answer = await api.get(f"{TAIL}?{query}")

    assert (answer.status, answer.code) == (status, code)


async def test_unsupported_forms(api, six) -> None:
    """A tail request for an unsupported form is answered with 406, and for an unknown topic with 404."""
    unspoken = await api.get(TAIL, accept="application/json")
    unknown = await api.get("/v1/topics/nothing/records")

    assert (unspoken.status, unspoken.json["supported"]) == (
        406,
        ["application/x-ndjson", "text/event-stream"],
    )
    assert (unknown.status, unknown.code) == (404, "topic_not_found")


async def test_encodings(api) -> None:
    """A tail encodes key and value like a fetch."""
    await api.create("flights", 1)
    await api.post("/v1/topics/flights/partitions/0/records?encoding=json", [{"value": {"a": [1]}}])
    as_text = lines(await api.get(f"{TAIL}?from=earliest&max_records=1"))
    as_json = lines(await api.get(f"{TAIL}?from=earliest&max_records=1&encoding=json"))
    as_base64 = lines(await api.get(f"{TAIL}?from=earliest&max_records=1&encoding=base64"))

    assert [told[0]["value"] for told in (as_text, as_json, as_base64)] == [
        '{"a":[1]}',
        {"a": [1]},
        "eyJhIjpbMV19",
    ]


async def test_expired_records_are_reported(api, six) -> None:
    """A tail that continues at an expired offset reports the offset and then sends every stored record."""
    await api.post("/v1/topics/flights/partitions/0:delete-records", {"offset": 2})
    answer = await api.call("GET", f"{TAIL}?max_records=1", headers={"last-event-id": "0:1,1:3"})
    [problem, record] = lines(answer)

    assert problem["problem"]["code"] == "offset_expired"
    assert record["offset"] == 2


async def until_waiting(api, broker) -> None:
    """Wait until a tail waits for records."""
    async with asyncio.timeout(30):
        while not any(replica._polls for replica in broker.broker.replicas):
            await api.get("/v1/versions")


async def test_partitions_that_are_added_are_read_from_their_start(api, six, broker) -> None:
    """A tail that began at the end reads added partitions from their start."""
    following = asyncio.create_task(api.get(f"{TAIL}?max_records=1&max_seconds=60"))
    await until_waiting(api, broker)
    await api.call("PATCH", "/v1/topics/flights", b'{"partitions": 3}', {"content-type": "application/json"})
    await put(api, 2, 7)
    # The tail began with two partitions, and waits until a record is stored in one of them.
    sent = 0
    while not following.done():
        await put(api, 2, 8 + sent)
        sent += 1
        await put(api, 0, 3) if sent == 1 else None

    told = lines(await following)
    assert (told[0]["partition"], told[0]["offset"]) in [(2, 0), (0, 3)]


async def test_partitions_added_in_between_are_read_from_their_start(api, six) -> None:
    """A tail that continues at an event id reads partitions added since then from their start."""
    await api.call("PATCH", "/v1/topics/flights", b'{"partitions": 3}', {"content-type": "application/json"})
    await put(api, 2, 20)
    answer = await api.call(
        "GET", f"{TAIL}?max_records=1&max_seconds=20", headers={"last-event-id": "0:3,1:3"}
    )

    assert [record["value"] for record in lines(answer)] == ["20"]


async def test_head_has_the_form_and_no_length(api, six) -> None:
    """A HEAD request for a tail returns the content type but no length, because the length is unknown."""
    answer = await api.call("HEAD", TAIL, headers=EVENTS)

    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")
    assert "content-length" not in answer.headers


async def test_json_of_several_lines_is_one_line_and_one_event(api) -> None:
    """A JSON record of several lines is sent as one line and one event."""
    await api.create("flights", 1)
    body = b'{"records": [{"value": {\n  "a": 1,\r\n\n  "b": [2]\n}}]}'
    await api.call("POST", f"{TAIL}?encoding=json", body, {"content-type": "application/json"})
    wanted = f"{TAIL}?from=earliest&max_records=1&encoding=json"
    [line] = lines(await api.get(wanted))
    [_, (_, event)] = events(await api.call("GET", wanted, headers=EVENTS))

    assert line == event
    assert line["value"] == {"a": 1, "b": [2]}


async def test_a_topic_that_goes_ends_its_tail(api, six, broker) -> None:
    """A tail of a topic that is deleted ends with a line that contains the reason."""
    following = asyncio.create_task(api.get(f"{TAIL}?max_seconds=60"))
    await until_waiting(api, broker)
    gone = await api.call("DELETE", "/v1/topics/flights")
    [problem] = lines(await following)

    assert gone.status == 204

    assert problem["problem"]["code"] in {"topic_not_found", "partition_not_found", "no_leader"}


async def test_through_any_broker(three) -> None:
    """A tail sends records of all leaders through every broker."""
    await three.topic("flights")
    for partition in range(3):
        await put(three.at(1), partition, partition)
    for broker in (1, 2, 3):
        answer = await three.at(broker).get(f"{TAIL}?from=earliest&max_records=3")

        assert sorted(record["value"] for record in lines(answer)) == ["0", "1", "2"]
    strict = await three.at(1).get(TAIL, fairlead_forward="never")
    assert (strict.status, strict.code) == (421, "not_leader")
    assert {"address", "leader_epoch", "topic", "partition"} <= strict.json.keys()
