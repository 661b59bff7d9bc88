"""Three brokers: every broker answers any request, or names the right broker if it must not forward the request."""

import asyncio

import msgspec
import pytest

from fairlead_api.batch.batches import decode_records
from fairlead_api.bodies.frames import encode_frame, iterate_frames
from fairlead_broker.certificates.material import Side
from waiting import until

FRAMES = {"content-type": "application/vnd.fairlead.frames;v=1"}
JSON = {"content-type": "application/json"}
NEVER = {"fairlead-forward": "never"}


async def test_changes_go_to_the_controller(three) -> None:
    """A topic is created, altered and deleted through any broker, whose later answers show the change."""
    for broker in (1, 2, 3):
        api, name = three.at(broker), f"topic-{broker}"
        created = await api.post("/v1/topics", {"name": name, "partitions": 2, "replication_factor": 1})
        described = await api.get(f"/v1/topics/{name}")
        again = await api.post("/v1/topics", {"name": name, "partitions": 2, "replication_factor": 1})
        other = await api.post("/v1/topics", {"name": name, "partitions": 3, "replication_factor": 1})
        body = msgspec.json.encode({"partitions": 4})
        altered = await api.call("PATCH", f"/v1/topics/{name}", body, JSON)

        assert (created.status, created.headers["location"]) == (201, f"/v1/topics/{name}")
        assert described.json == created.json
        assert again.status == 200
        assert (other.status, other.code) == (409, "topic_exists")
        assert altered.json["partitions"] == 4
        assert (await api.get(f"/v1/topics/{name}")).json["partitions"] == 4

    deleted = await three.at(2).call("DELETE", "/v1/topics/topic-1")

    assert deleted.status == 204
    assert (await three.at(2).get("/v1/topics/topic-1")).code == "topic_not_found"


async def test_records_through_any_broker(three, batch_of) -> None:
    """Records produced through one broker are read through every other broker, wherever the leader is."""
    _, leaders = await three.topic("flights")
    assert len(set(leaders)) == 3
    for partition in range(3):
        path = f"/v1/topics/flights/partitions/{partition}/records"
        for broker in (1, 2, 3):
            stored = await three.at(broker).post_batch(path, batch_of(b"from %d" % broker))
            assert (stored.status, stored.json["base_offset"]) == (200, broker - 1)
        for broker in (1, 2, 3):
            read = await three.at(broker).get(path)
            offsets = await three.at(broker).get(f"/v1/topics/flights/partitions/{partition}/offsets")

            assert read.status == 200
            assert read.headers["fairlead-next-offset"] == "3"
            assert [each["value"] for each in read.json["records"]] == ["from 1", "from 2", "from 3"]
            assert offsets.json["high_watermark"] == 3


async def test_head_has_the_length_of_a_get_everywhere(three, batch_of) -> None:
    """HEAD requests return the length of the answer to GET, even when another broker answers or refuses."""
    await three.topic("flights")
    paths = [f"/v1/topics/flights/partitions/{partition}/records" for partition in range(3)]
    for path in paths:
        await three.at(1).post_batch(path, batch_of(b"a"))
    paths += ["/v1/topics/flights/partitions/0/offsets", "/v1/groups/nobody/lag"]
    for path in paths:
        for broker in (1, 2, 3):
            read, head = await three.at(broker).get(path), await three.at(broker).call("HEAD", path)

            assert (head.status, head.body) == (read.status, b"")
            assert head.headers["content-length"] == str(len(read.body)), (path, broker)


async def test_a_call_that_forbids_forwarding_gets_the_address(three, batch_of) -> None:
    """A request with `Fairlead-Forward: never` gets 421 with the leader's address, and nothing is appended."""
    _, [leader] = await three.topic("flights", 1)
    path = "/v1/topics/flights/partitions/0/records"
    for broker in (1, 2, 3):
        answer = await three.at(broker).post_batch(path, batch_of(b"x"), fairlead_forward="never")
        if broker == leader:
            assert answer.status == 200
            continue
        assert (answer.status, answer.code) == (421, "not_leader")
        assert answer.json["address"].endswith(three.brokers[leader - 1].addresses.data)

    assert await three.at(1).end_offset("flights") == 1


async def test_many_partitions_are_split_and_merged(three, batch_of) -> None:
    """Produce and fetch requests for partitions of all brokers are answered in order, including a problem."""
    topic_id, _ = await three.topic("flights")
    ghost = "00000000-0000-4000-8000-000000000000"
    body = b""
    for topic, partition in [(topic_id, 2), (ghost, 0), (topic_id, 0), (topic_id, 1)]:
        meta = msgspec.json.encode({"topic_id": topic, "partition": partition})
        body += b"".join(encode_frame(meta, [memoryview(batch_of(b"to %d" % partition))]))
    for turn, broker in enumerate((1, 2, 3)):
        produced = await three.at(broker).call("POST", "/v1/produce", body, FRAMES)

        assert produced.status == 207
        results = produced.json["results"]
        assert [each["partition"] for each in results] == [2, 0, 0, 1]
        assert [each.get("base_offset") for each in results] == [turn, None, turn, turn]
        assert results[1]["problem"]["code"] == "topic_not_found"

    wanted = [{"topic_id": topic_id, "partition": partition, "offset": 0} for partition in (1, 2, 0)]
    for broker in (1, 2, 3):
        fetched = await three.at(broker).post("/v1/fetch", {"max_wait_ms": 0, "partitions": wanted})
        frames = list(iterate_frames(fetched.body))

        assert [msgspec.json.decode(frame.meta)["partition"] for frame in frames] == [1, 2, 0]
        assert [len(decode_records(bytes(frame.data))) for frame in frames] == [3, 3, 3]


async def test_topic_produce_spreads_over_brokers(three) -> None:
    """One JSON request stores records in partitions of several brokers; a repeat with its key stores nothing more."""
    await three.topic("flights")
    records = [{"key": f"key-{number}", "value": str(number)} for number in range(30)]
    headers = {**JSON, "idempotency-key": "once"}
    body = msgspec.json.encode({"records": records})
    answers = [
        await three.at(broker).call("POST", "/v1/topics/flights/records", body, headers)
        for broker in (1, 2, 3)
    ]

    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [answer.headers.get("fairlead-duplicate") for answer in answers] == [None, "true", "true"]
    assert len(answers[0].json["results"]) == 3
    assert sum([await three.at(1).end_offset("flights", partition) for partition in range(3)]) == 30


async def test_long_polls_wake_across_brokers(three, batch_of) -> None:
    """A long poll ends when a record is stored at another broker, for one partition and for many."""
    topic_id, [leader] = await three.topic("flights", 1)
    other = leader % 3 + 1
    path = "/v1/topics/flights/partitions/0/records"
    one = asyncio.ensure_future(three.at(other).get(f"{path}?offset=latest&max_wait_ms=30000"))
    wanted = [{"topic_id": topic_id, "partition": 0, "offset": 0}]
    many = asyncio.ensure_future(
        three.at(other).post("/v1/fetch", {"max_wait_ms": 30_000, "partitions": wanted})
    )
    async with asyncio.timeout(10):
        await until(lambda: three.brokers[leader - 1].broker.fetching.waiting == 2)
        await three.at(leader).post_batch(path, batch_of(b"now"))
        # Both answers come long before the maximum wait of the polls.
        answers = await asyncio.gather(one, many)

    assert [answer.status for answer in answers] == [200, 200]


async def test_polls_that_end_empty(three) -> None:
    """A long poll through another broker gets an empty answer after its maximum wait."""
    topic_id, [leader] = await three.topic("flights", 1)
    other = three.at(leader % 3 + 1)
    one = await other.get("/v1/topics/flights/partitions/0/records?max_wait_ms=10")
    wanted = [{"topic_id": topic_id, "partition": 0, "offset": 0}]
    many = await other.post("/v1/fetch", {"max_wait_ms": 10, "partitions": wanted})

    assert one.status == 204
    assert one.headers["fairlead-next-offset"] == "0"
    [frame] = iterate_frames(many.body)
    assert msgspec.json.decode(frame.meta)["high_watermark"] == 0


async def test_offsets_of_all_brokers(three, batch_of) -> None:
    """Offsets of partitions of all brokers are answered in order."""
    await three.topic("flights")
    await three.at(1).post_batch("/v1/topics/flights/partitions/1/records", batch_of(b"x", b"y"))
    wanted = [{"topic": "flights", "partition": partition, "timestamp": "latest"} for partition in (2, 1, 0)]
    for broker in (1, 2, 3):
        found = await three.at(broker).post("/v1/offsets:lookup", {"partitions": wanted})

        assert found.status == 200
        assert [(each["partition"], each["offset"]) for each in found.json["partitions"]] == [
            (2, 0),
            (1, 2),
            (0, 0),
        ]


async def test_problems_of_leaders_pass_unchanged(three) -> None:
    """A leader's refusal is the same through every broker."""
    _, [leader] = await three.topic("flights", 1)
    path = "/v1/topics/flights/partitions/0/records?offset=7"
    answers = [await three.at(broker).get(path) for broker in (1, 2, 3)]

    assert {answer.status for answer in answers} == {416}
    assert len({answer.body for answer in answers}) == 1
    assert leader in (1, 2, 3)


async def test_auto_created_topics(three, batch_of) -> None:
    """A missing topic is created by a produce request through any broker."""
    body = msgspec.json.encode({"config": {"auto.create.topics.enable": True}})
    changed = await three.at(2).call("PATCH", "/v1/cluster/config", body, JSON)
    assert changed.status == 200, changed
    for broker in (1, 2, 3):
        stored = await three.at(broker).post_batch(
            f"/v1/topics/made-{broker}/partitions/0/records", batch_of(b"x")
        )

        assert stored.status == 200, stored


async def test_a_missing_leader_is_a_definite_refusal(three, batch_of) -> None:
    """Produce and fetch requests are refused as not executed when the leader's address is closed."""
    topic_id, [leader] = await three.topic("flights", 1)
    other = three.at(leader % 3 + 1)
    await three.brokers[leader - 1].listeners.stop_side(Side.PEER, 3)
    path = "/v1/topics/flights/partitions/0/records"
    meta = msgspec.json.encode({"topic_id": topic_id, "partition": 0})
    frames = b"".join(encode_frame(meta, [memoryview(batch_of(b"x"))]))
    produced = await other.post_batch(path, batch_of(b"x"))
    fetched = await other.get(path)
    many = await other.call("POST", "/v1/produce", frames, FRAMES)

    for problem in (produced.json, fetched.json, many.json["results"][0]["problem"]):
        assert (problem["code"], problem["side_effect"]) == ("no_leader", "none")


async def test_records_without_a_key_leave_out_partitions_without_a_leader(three) -> None:
    """Records without a key rotate over the partitions that have a leader, through every broker."""
    _, leaders = await three.topic("flights")
    gone = leaders.index(3)
    await three.brokers[2].stop()
    api = three.at(1)
    async with asyncio.timeout(20):
        while (await api.get("/v1/metadata?topics=flights")).json["topics"][0]["partitions"][gone]["leader"]:
            pass
    answers = [await api.post("/v1/topics/flights/records", [{"value": "a"}]) for _ in range(6)]
    places = [answer.json["results"][0]["partition"] for answer in answers]

    assert [answer.status for answer in answers] == [200] * 6
    assert sorted(places) == sorted([place for place in range(3) if place != gone] * 3)


@pytest.mark.scenario
@pytest.mark.slow
async def test_a_tail_sends_heartbeats_without_a_leader(three) -> None:
    """A tail sends comments while its partition has no leader, because load balancers close idle connections."""
    _, leaders = await three.topic("flights")
    await three.brokers[2].stop()
    assert 3 in leaders
    known = {"accept": "text/event-stream", "last-event-id": "0:0,1:0,2:0"}
    tail = await three.at(1).call("GET", "/v1/topics/flights/records?max_seconds=16", b"", known)

    assert tail.body == b"id: 0:0,1:0,2:0\n\n:\n\n"


@pytest.mark.slow
async def test_a_silent_leader_leaves_doubt(three, batch_of) -> None:
    """A produce request that its leader received and did not answer in time is reported as possibly stored."""
    topic_id, [leader] = await three.topic("flights", 1)
    other, path = three.at(leader % 3 + 1), "/v1/topics/flights/partitions/0/records"
    await three.brokers[leader - 1].listeners.stop_side(Side.PEER, 3)
    host, _, port = three.brokers[leader - 1].addresses.peer.rpartition(":")

    taken: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        while await reader.read(1 << 16):
            pass

    silent = await asyncio.start_server(take, host, int(port))
    meta = msgspec.json.encode({"topic_id": topic_id, "partition": 0})
    frames = b"".join(encode_frame(meta, [memoryview(batch_of(b"x"))]))
    produced, many = await asyncio.gather(
        other.post_batch(f"{path}?timeout_ms=10", batch_of(b"x")),
        other.call("POST", "/v1/produce?timeout_ms=10", frames, FRAMES),
    )
    silent.close()
    for writer in taken:
        writer.close()
        await writer.wait_closed()

    for problem in (produced.json, many.json["results"][0]["problem"]):
        assert problem["code"] in {"ack_timeout", "leader_changed"}
        assert problem["side_effect"] == "maybe"


async def test_large_answers_are_forwarded_in_parts(three, batch_of) -> None:
    """A fetch of 64 MiB is forwarded in parts of 8 MiB, within the time and memory limits of brokers."""
    topic_id, [leader] = await three.topic("flights", 1)
    path, other = "/v1/topics/flights/partitions/0/records", three.at(leader % 3 + 1)
    for _ in range(4):
        assert (await other.post_batch(path, batch_of(bytes(3 << 20)))).status == 200
    one = await other.get(f"{path}?max_bytes=67108864", accept="application/vnd.fairlead.batches")
    wanted = [{"topic_id": topic_id, "partition": 0, "offset": 0, "max_bytes": 64 << 20}]
    many = await other.post("/v1/fetch", {"max_bytes": 64 << 20, "partitions": wanted})
    [frame] = iterate_frames(many.body)

    assert one.headers["fairlead-next-offset"] == "2"
    assert msgspec.json.decode(frame.meta)["next_offset"] == 2
    assert 6 << 20 < len(one.body) == len(frame.data) < 8 << 20


async def test_a_missing_controller_is_a_definite_refusal(three) -> None:
    """A change that cannot reach the controller is refused with a problem that states that nothing was changed."""
    controller = (await three.at(1).get("/v1/cluster")).json["controller"]
    await three.brokers[controller - 1].listeners.stop_side(Side.PEER, 3)
    answer = await three.at(controller % 3 + 1).post("/v1/topics", {"name": "flights"})

    assert (answer.status, answer.code) == (503, "coordination_unavailable")
    assert answer.json["side_effect"] == "none"
    assert (await three.at(controller).get("/v1/topics/flights")).code == "topic_not_found"


async def test_forwarded_calls_are_counted(three, batch_of, cluster) -> None:
    """Forwarded requests are counted at the forwarding broker by route and outcome, refusals by their code."""
    _, [leader] = await three.topic("flights", 1)
    path = "/v1/topics/flights/partitions/0/records"
    through = next(broker for broker in (1, 2, 3) if broker != leader)
    await three.at(through).post_batch(path, batch_of(b"x"))
    await three.at(through).get(path)
    await three.at(through).get(f"{path}?offset=99")
    ops = [
        await cluster.client(three.brokers[each - 1].addresses.ops, http1=True) for each in (through, leader)
    ]
    pages = [(await each.get("/metrics")).body.decode() for each in ops]
    counted = [
        {
            line.removeprefix("fairlead_forwarded_requests_total")
            for line in page.splitlines()
            if line.startswith("fairlead_forwarded_requests_total{") and "create_topic" not in line
        }
        for page in pages
    ]

    assert counted[0] == {
        '{outcome="200",route="produce_partition"} 1.0',
        '{outcome="200",route="fetch_partition"} 1.0',
        '{outcome="416",route="fetch_partition"} 1.0',
    }
    assert counted[1] == set()
