"""Producing line by line: groups of lines, their results, and a slow sender."""

import asyncio
import gzip

import msgspec
import pytest

LINES = {"content-type": "application/x-ndjson"}
TOPIC = "/v1/topics/flights/records"
PARTITION = "/v1/topics/flights/partitions/0/records"


async def send(api, path: str, text: str | bytes, **headers: str) -> tuple[list[dict], dict]:
    """Send lines; return the result of each group and the summary."""
    body = text.encode() if isinstance(text, str) else text
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await api.call("POST", path, body, {**LINES, **named})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer
    *told, total = map(msgspec.json.decode, answer.body.splitlines())
    return told, total


async def values(api, partition: int = 0) -> list[str]:
    """Return the values of a partition."""
    answer = await api.get(f"/v1/topics/flights/partitions/{partition}/records")
    return [record["value"] for record in answer.json["records"]] if answer.status == 200 else []


async def test_each_line_is_a_record(api) -> None:
    """Lines for one partition are stored as records in their order; empty lines are counted but store nothing."""
    await api.create("flights", 1)
    told, total = await send(
        api, PARTITION, '{"value":"a"}\n\n{"key":"k","value":"b","headers":[["h","1"]]}\r\n{"value":"c"}'
    )

    assert await values(api) == ["a", "b", "c"]
    # On a busy machine, the end of the body arrives after the first lines are stored, so there may be two groups.
    assert (told[0]["first_line"], told[-1]["last_line"]) == (1, 4)
    assert {each["status"] for each in told} == {200}
    results = [result for each in told for result in each["results"]]
    assert {result["partition"] for result in results} == {0}
    assert (results[0]["base_offset"], results[-1]["last_offset"]) == (0, 2)
    assert total == {"status": 200, "records": 3, "stored": 3, "refused": 0}


async def test_the_broker_picks_partitions_by_key(api) -> None:
    """Records from lines are distributed by key as for a JSON body, in all encodings."""
    await api.create("flights", 3)
    await send(api, TOPIC, "".join(f'{{"key":"{key}","value":"{key}"}}\n' for key in range(30)))
    _, total = await send(api, f"{TOPIC}?encoding=json", '{"key":1,"value":{"a":[2]}}\n')
    await send(api, f"{PARTITION}?encoding=base64", '{"value":"YWJj"}\n')

    by_key = await api.post("/v1/topics/flights/records", [{"key": "7", "value": "again"}])
    place = by_key.json["results"][0]["partition"]
    assert total["stored"] == 1
    assert "7" in await values(api, place)
    assert "abc" in await values(api)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ('{"value":', "malformed_request", "line 2: "),
        ('{"value":"a"},{"value":"b"}', "malformed_request", "line 2: "),
        ('[{"value":"a"}]', "malformed_request", "line 2: "),
        ('{"key":"k"}', "malformed_request", "line 2: "),
        ('{"value":"a","ttl":1}', "unknown_option", "line 2: "),
        ('{"value":{"base64":"?"}}', "invalid_record", "line 2: "),
        ("[" * 40, "malformed_request", "line 2: "),
    ],
)
async def test_a_line_that_is_no_record_refuses_its_group(api, line: str, code: str, word: str) -> None:
    """A line that is not a record is named and reported in the summary, and no record of its group is stored."""
    await api.create("flights", 1)
    [told], total = await send(api, PARTITION, f'{{"value":"first"}}\n{line}\n{{"value":"last"}}\n')

    assert (told["status"], told["problem"]["code"]) == (told["problem"]["status"], code)
    assert told["problem"]["detail"].startswith(word)
    assert told["problem"]["line"] == 2
    assert total == {"status": 207, "records": 3, "stored": 0, "refused": 3}
    assert await values(api) == []


async def test_refusals_of_the_whole_call(api) -> None:
    """An invalid request is refused before a line is read, and groups of lines for a missing partition are refused."""
    unknown = await api.call("POST", "/v1/topics/nothing/partitions/0/records", b'{"value":"a"}\n', LINES)
    await api.create("flights", 1)
    keyed = await api.call("POST", TOPIC, b'{"value":"a"}\n', {**LINES, "idempotency-key": "k"})
    named = await api.call("POST", PARTITION, b'{"value":"a"}\n', {**LINES, "fairlead-producer-id": "1"})
    [told], total = await send(api, "/v1/topics/flights/partitions/5/records", '{"value":"a"}\n')

    assert (unknown.status, unknown.code) == (404, "topic_not_found")
    assert (keyed.status, named.status) == (400, 400)
    assert told["problem"]["code"] == "partition_not_found"
    assert total["refused"] == 1
    assert await send(api, PARTITION, "") == ([], {"status": 200, "records": 0, "stored": 0, "refused": 0})


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_compressed_lines_are_refused(api, coding: str) -> None:
    """A request with compressed lines is refused as a whole, like any compressed body."""
    await api.create("flights", 1)
    body = gzip.compress(b'{"value":"a"}\n') if coding == "gzip" else b'{"value":"a"}\n'
    answer = await api.call("POST", TOPIC, body, {**LINES, "content-encoding": coding})

    assert (answer.status, answer.code, answer.json["supported"]) == (
        415,
        "unsupported_media_type",
        ["identity"],
    )
    assert await values(api) == []


async def test_acks_none_promises_nothing(api) -> None:
    """A group of lines with acks=0 is reported as valid."""
    await api.create("flights", 1)
    told, total = await send(api, f"{PARTITION}?acks=0", '{"value":"a"}\n')

    assert told == [{"first_line": 1, "last_line": 1, "status": 202}]
    assert total["status"] == 202


async def test_a_large_file_becomes_few_batches(api) -> None:
    """Records from many thousands of lines are stored in order, in groups of at least 256 KiB."""
    await api.create("flights", 1)
    lines = "".join(f'{{"value":"{number:0100d}"}}\n' for number in range(20_000))
    told, total = await send(api, PARTITION, lines)

    assert total == {"status": 200, "records": 20_000, "stored": 20_000, "refused": 0}
    assert len(told) < 20
    assert [each["first_line"] for each in told] == [1, *(each["last_line"] + 1 for each in told[:-1])]
    assert await api.end_offset("flights") == 20_000


async def test_a_line_beyond_the_limit_ends_the_stream(api) -> None:
    """Records before a line that is too long are stored and reported, and the summary has the problem's status."""
    await api.create("flights", 1)
    body = b'{"value":"a"}\n{"value":"' + b"x" * (17 << 20) + b'"}\n'
    told, total = await send(api, PARTITION, body)

    assert told[-1]["problem"]["code"] == "body_too_large"
    assert total["status"] == 413


async def test_a_slow_sender_is_answered_line_by_line(cluster) -> None:
    """Records from a slow sender are stored and reported line by line during the request, over plain HTTP/1.1."""
    broker = await cluster.start()
    api = await cluster.client(broker.addresses.data)
    await api.create("flights", 1)
    host, _, port = broker.addresses.data.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {PARTITION} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n"
        "transfer-encoding: chunked\r\n\r\n".encode()
    )
    for number in range(3):
        line = b'{"value":"%d"}\n' % number
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))
        told = b""
        while not told.startswith(b"{"):
            told = await asyncio.wait_for(reader.readline(), 30)

        assert msgspec.json.decode(told)["results"][0]["base_offset"] == number
        assert await values(api) == [str(each) for each in range(number + 1)]
    writer.write(b"0\r\n\r\n")
    rest = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()

    assert b'{"status":200,"records":3,"stored":3,"refused":0}' in rest


async def test_a_missing_topic_is_created_by_its_first_good_line(cluster) -> None:
    """A missing topic is created by its first valid line if the broker allows it, but never by refused lines."""
    broker = await cluster.start(config_values={"auto.create.topics.enable": True})
    api = await cluster.client(broker.addresses.data)
    _, refused = await send(api, TOPIC, "no record\n")
    absent = await api.get("/v1/topics/flights")
    _, stored = await send(api, TOPIC, '{"value":"a"}\n')

    assert (refused["stored"], absent.status, stored["stored"]) == (0, 404, 1)


async def test_lines_through_any_broker(three) -> None:
    """Groups of lines are stored at the leaders of their partitions, through any broker."""
    await three.topic("flights")
    for broker in (1, 2, 3):
        text = "".join(f'{{"key":"{key}","value":"{broker}"}}\n' for key in range(20))
        told, total = await send(three.at(broker), TOPIC, text)

        assert total["stored"] == 20
        assert {result["partition"] for each in told for result in each["results"]} == {0, 1, 2}
