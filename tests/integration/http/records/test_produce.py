"""Producing over HTTP: binary batches, JSON, Arrow streams, frames, produce to a topic, acks."""

from base64 import b64encode

import msgspec
import pyarrow as pa
import pytest

from fairlead_api.batch.batches import decode_records
from fairlead_api.batch.header import Codec, read_header
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.partitioning import partition_for_key

RECORDS = "/v1/topics/flights/partitions/0/records"
FRAMES = "application/vnd.fairlead.frames;v=1"
BATCHES = "application/vnd.fairlead.batches"
ARROW = "application/vnd.apache.arrow.stream"


def frames_of(*frames: tuple[str, int, bytes]) -> bytes:
    """Return a produce body of (topic id, partition, batch)."""
    return b"".join(
        bytes(part)
        for topic_id, partition, batch in frames
        for part in encode_frame(msgspec.json.encode({"topic_id": topic_id, "partition": partition}), [batch])
    )


async def stored(api, topic: str = "flights", partition: int = 0):
    """Return every record of a partition, decoded as a client would."""
    answer = await api.get(f"/v1/topics/{topic}/partitions/{partition}/records?max_wait_ms=0", accept=BATCHES)
    return decode_records(answer.body)


async def test_batch_is_stored_unchanged(api, batch_of) -> None:
    """A binary batch is stamped and keeps every other byte, and offsets are consecutive."""
    await api.create("flights")
    first, second = batch_of(b"a", b"b"), batch_of(b"c")
    answers = [await api.post_batch(RECORDS, batch) for batch in (first, second)]
    fetched = (await api.get(RECORDS, accept=BATCHES)).body

    assert [answer.json["base_offset"] for answer in answers] == [0, 2]
    assert [answer.json["last_offset"] for answer in answers] == [1, 2]
    assert set(answers[0].json) == {
        "base_offset",
        "last_offset",
        "log_append_time",
        "leader_epoch",
        "duplicate",
    }
    assert answers[0].json["log_append_time"].endswith("Z")
    assert fetched[36 : len(first)] == first[36:]
    assert fetched[len(first) + 36 :] == second[36:]
    assert read_header(fetched, len(first)).base_offset == 2


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
async def test_compressed_batches(api, batch_of, codec: Codec) -> None:
    """Compressed batches are stored unchanged and read back equal, with each codec."""
    await api.create("flights")
    batch = batch_of(*[b"value %d" % number for number in range(500)], codec=codec)
    await api.post_batch(RECORDS, batch)

    assert [record.value for record in await stored(api)] == [b"value %d" % number for number in range(500)]


async def test_json_fields(api) -> None:
    """Records as JSON keep keys, values, headers and both forms of timestamps, and null differs from empty."""
    await api.create("flights")
    body = {
        "records": [
            {"key": "k", "value": "v", "headers": [["a", "1"], ["a", "2"], ["n", None]], "timestamp": 1500},
            {"key": "", "value": "", "timestamp": "2013-01-01T05:15:00.25+01:00"},
            {"key": None, "value": None},
            {"value": {"base64": "/wA="}},
        ]
    }
    answer = await api.post(RECORDS, body)
    records = await stored(api)

    assert answer.status == 200
    assert [(record.key, record.value) for record in records] == [
        (b"k", b"v"),
        (b"", b""),
        (None, None),
        (None, b"\xff\0"),
    ]
    assert records[0].headers == (("a", b"1"), ("a", b"2"), ("n", None))
    assert [record.timestamp_us for record in records[:2]] == [1_500_000, 1_357_013_700_250_000]
    assert records[2].timestamp_us == records[3].timestamp_us > 1_700_000_000_000_000


async def test_json_encodings(api) -> None:
    """Records as JSON keep the text of JSON values, and base64 is decoded to bytes."""
    await api.create("flights")
    await api.call(
        "POST",
        f"{RECORDS}?encoding=json",
        b'[{"key": 7, "value": {"b": [1, 2.50]}}]',
        {"content-type": "application/json"},
    )
    await api.post(f"{RECORDS}?encoding=base64", [{"key": b64encode(b"\0k").decode(), "value": "AAE="}])
    records = await stored(api)

    assert [(record.key, record.value) for record in records] == [
        (b"7", b'{"b": [1, 2.50]}'),
        (b"\0k", b"\0\x01"),
    ]


async def test_json_uses_the_topics_compression(api) -> None:
    """The broker compresses the batches of JSON records with the codec of the topic."""
    await api.create("flights", compression_type="zstd")
    await api.post(RECORDS, [{"value": "a" * 10_000}])
    fetched = (await api.get(RECORDS, accept=BATCHES)).body

    assert read_header(fetched).codec == Codec.ZSTD
    assert len(fetched) < 2_000


async def test_arrow_stream(api) -> None:
    """An Arrow stream of text columns becomes one batch."""
    await api.create("flights")
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": ["a", "b"], "key": ["x", None]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    answer = await api.call("POST", RECORDS, sink.getvalue().to_pybytes(), {"content-type": ARROW})
    records = await stored(api)

    assert (answer.json["base_offset"], answer.json["last_offset"]) == (0, 3)
    assert [(record.key, record.value) for record in records] == [(b"x", b"a"), (None, b"b")] * 2


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["1", "all"])
async def test_acknowledged_is_readable(api, batch_of, acks: str) -> None:
    """Records that are acknowledged with acks=all are fetched at once, and acks=1 returns offsets too."""
    await api.create("flights")
    answer = await api.post_batch(f"{RECORDS}?acks={acks}&timeout_ms=5000", batch_of(b"a"))
    fetched = await api.get(f"{RECORDS}?max_wait_ms=5000", accept=BATCHES)

    assert answer.json["base_offset"] == 0
    assert decode_records(fetched.body)[0].value == b"a"


async def test_acks_0_is_validated_and_not_awaited(api, batch_of) -> None:
    """A batch with acks=0 gets 202 without a body when it is valid, and is refused otherwise."""
    await api.create("flights")
    accepted = await api.post_batch(f"{RECORDS}?acks=0", batch_of(b"a"))
    refused = await api.post_batch(f"{RECORDS}?acks=0", batch_of(b"a")[:-8])
    fetched = await api.get(f"{RECORDS}?max_wait_ms=5000", accept=BATCHES)

    assert (accepted.status, accepted.body) == (202, b"")
    assert refused.code == "malformed_batch"
    assert [record.value for record in decode_records(fetched.body)] == [b"a"]


async def test_topic_produce_by_key(api) -> None:
    """Records with a key are placed according to Kafka's rule, in order, and the answer names each partition."""
    topic_id = await api.create("flights", 3)
    keys = ["21", "foobar", "abc", "21", "UA", "DL"]
    answer = await api.post(
        "/v1/topics/flights/records",
        {"records": [{"key": key, "value": f"{n}"} for n, key in enumerate(keys)]},
    )
    by_partition = {p: [(r.key, r.value) for r in await stored(api, partition=p)] for p in range(3)}

    assert answer.status == 200
    assert (answer.json["topic"], answer.json["topic_id"]) == ("flights", topic_id)
    assert "records" not in answer.json
    assert {result["partition"] for result in answer.json["results"]} == {
        partition for partition, records in by_partition.items() if records
    }
    for partition, records in by_partition.items():
        assert records == [
            (key.encode(), b"%d" % n)
            for n, key in enumerate(keys)
            if partition_for_key(key.encode(), 3) == partition
        ]


async def test_topic_produce_without_keys_takes_turns(api) -> None:
    """Records without a key stay together in a request, and requests rotate over the partitions."""
    await api.create("flights", 3)
    results = [
        (await api.post("/v1/topics/flights/records", [{"value": "a"}, {"value": "b"}])).json["results"]
        for _ in range(6)
    ]

    assert all(len(result) == 1 for result in results)
    assert sorted(result[0]["partition"] for result in results) == [0, 0, 1, 1, 2, 2]


async def test_each_topic_has_a_turn_of_its_own(api) -> None:
    """Requests to another topic, or with keyed records only, do not change the next partition of the topic."""
    await api.create("flights", 2)
    await api.create("trains", 2)
    places: dict[str, list[int]] = {"flights": [], "trains": []}
    for _ in range(4):
        for topic, found in places.items():
            [result] = (await api.post(f"/v1/topics/{topic}/records", [{"value": "a"}])).json["results"]
            found.append(result["partition"])
        await api.post("/v1/topics/trains/records", [{"key": "k", "value": "a"}])

    assert places == {"flights": [0, 1, 0, 1], "trains": [0, 1, 0, 1]}


async def test_topic_produce_in_part(api) -> None:
    """A produce request that one partition refuses gets 207 with the result of every record."""
    await api.create("flights", 2, max_message_bytes=2_000)
    keys = {partition_for_key(b"%d" % n, 2): str(n) for n in range(10)}
    answer = await api.post(
        "/v1/topics/flights/records",
        [
            {"key": keys[0], "value": "small"},
            {"key": keys[1], "value": "x" * 5_000},
            {"key": keys[0], "value": "small too"},
        ],
    )

    assert answer.status == 207
    assert [record["status"] for record in answer.json["records"]] == [200, 413, 200]
    assert [record.get("offset") for record in answer.json["records"]] == [0, None, 1]
    assert answer.json["records"][1]["code"] == "batch_too_large"
    assert [entry.get("problem", {}).get("code") for entry in answer.json["results"]] == [
        None,
        "batch_too_large",
    ]
    assert (await api.end_offset("flights", 0), await api.end_offset("flights", 1)) == (2, 0)


async def test_topic_produce_refused_by_all(api) -> None:
    """A produce request that stores no record is answered with the problem itself."""
    await api.create("flights", 1, max_message_bytes=2_000)
    answer = await api.post("/v1/topics/flights/records", [{"value": "x" * 5_000}])

    assert (answer.status, answer.code) == (413, "batch_too_large")


async def test_frames(api, batch_of) -> None:
    """A produce request with a batch for each of many partitions is answered in order."""
    flights, planes = await api.create("flights", 2), await api.create("planes")
    body = frames_of(
        (flights, 1, batch_of(b"a")), (planes, 0, batch_of(b"b", b"c")), (flights, 0, batch_of(b"d"))
    )
    answer = await api.call("POST", "/v1/produce?acks=all", body, {"content-type": FRAMES})

    assert answer.status == 200
    assert [
        (entry["topic_id"], entry["partition"], entry["base_offset"], entry["last_offset"])
        for entry in answer.json["results"]
    ] == [(flights, 1, 0, 0), (planes, 0, 0, 1), (flights, 0, 0, 0)]
    assert [record.value for record in await stored(api, "planes")] == [b"b", b"c"]


async def test_frames_in_part(api, batch_of) -> None:
    """A produce request with an unwritable partition gets 207 with its problem, and stores all other batches."""
    topic_id = await api.create("flights")
    ghost = "00000000-0000-4000-8000-000000000000"
    broken = bytearray(batch_of(b"x"))
    broken[100] ^= 1
    body = frames_of((ghost, 0, batch_of(b"a")), (topic_id, 0, batch_of(b"b")), (topic_id, 7, batch_of(b"c")))
    answer = await api.call("POST", "/v1/produce", body, {"content-type": FRAMES})
    damaged = await api.call(
        "POST", "/v1/produce", frames_of((topic_id, 0, bytes(broken))), {"content-type": FRAMES}
    )

    assert answer.status == 207
    assert [entry.get("problem", {}).get("code") for entry in answer.json["results"]] == [
        "topic_not_found",
        None,
        "partition_not_found",
    ]
    assert (damaged.status, damaged.json["results"][0]["problem"]["code"]) == (207, "crc_mismatch")
    assert await api.end_offset("flights") == 1


async def test_auto_created_topic(cluster, batch_of) -> None:
    """A produce request may create a missing topic; a fetch of a missing topic is refused with `topic_not_found`."""
    broker = await cluster.start(config_values={"auto.create.topics.enable": True})
    api = await cluster.client(broker.addresses.data)
    answer = await api.post("/v1/topics/flights/records", [{"value": "a"}])
    fetched = await api.get("/v1/topics/ghost/partitions/0/records")

    assert answer.status == 200
    assert fetched.code == "topic_not_found"


async def test_http1_is_equivalent(cluster, broker, batch_of) -> None:
    """Produce requests over HTTP/1.1 have the same results, even with large bodies."""
    api = await cluster.client(broker.addresses.data, http1=True)
    await api.create("flights")
    batch = batch_of(*[bytes(1_000)] * 3_000)
    produced = await api.post_batch(RECORDS, batch)
    fetched = await api.get(f"{RECORDS}?max_bytes=10000000", accept=BATCHES)

    assert produced.json["last_offset"] == 2_999
    assert fetched.body[36:] == batch[36:]
