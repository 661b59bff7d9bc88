"""Idempotent producers over real HTTP: ids, repeats, reordering, threads."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_kit import Answer, BrokerProgram, Calls, sequenced
from fairlead_broker.clock import SystemClock
from fairlead_broker.producers import ProducerState, Snapshot, encode_snapshot, stored_batch
from fairlead_broker.wiring.start import RunningBroker

StartBroker = Callable[..., Awaitable[RunningBroker]]
Connect = Callable[[str], Awaitable[Calls]]
BURST = 5


def one(sequence: int, **who: int) -> bytes:
    """Return a batch with one record whose value is its sequence."""
    return sequenced(sequence, [b"%d" % sequence], **who)


async def test_ids_are_new_and_names_keep_theirs(start: StartBroker, connect: Connect) -> None:
    """A producer id is never issued twice, even after a restart, and a named producer keeps its id in a new epoch."""
    api = await connect(str((await start()).addresses.data))
    ids = [(await api.post("/v1/producers", {})).json["producer_id"] for _ in range(3)]
    named = (await api.post("/v1/producers", {"name": "spark-1"})).json
    again = await connect(str((await start()).addresses.data))
    later = [(await again.post("/v1/producers", {"name": None})).json["producer_id"] for _ in range(3)]
    renewed = (await again.post("/v1/producers", {"name": "spark-1"})).json

    assert len({*ids, named["producer_id"], *later}) == 7
    assert named == {"producer_id": named["producer_id"], "producer_epoch": 0, "name": "spark-1"}
    assert renewed == {**named, "producer_epoch": 1}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"name": "a\\u0007b"}', "invalid_group_name"),
        (b'{"name": 7}', "malformed_request"),
        (b'{"title": "a"}', "unknown_option"),
        (b"", "malformed_request"),
    ],
)
async def test_a_wrong_request_for_an_id_is_refused(api: Calls, body: bytes, code: str) -> None:
    """An invalid request for a producer id is refused, and the refusal names the mistake."""
    answer = await api.call("POST", "/v1/producers", body, {"content-type": "application/json"})

    assert answer.code == code


async def test_a_repeat_answers_the_first_offset(api: Calls) -> None:
    """A batch that is sent six times is stored once, and each repeat gets the first offset and a duplicate header."""
    await api.create("flights")

    answers = [await api.send("flights", one(0)) for _ in range(6)]

    assert {answer.status for answer in answers} == {200}
    assert [answer.json["duplicate"] for answer in answers] == [False] + [True] * 5
    assert [answer.headers.get("fairlead-duplicate") for answer in answers] == [None] + ["true"] * 5
    assert len({tuple(sorted({**a.json, "duplicate": None}.items(), key=str)) for a in answers}) == 1
    assert await api.values("flights") == [b"0"]


async def test_a_partition_lists_the_producers_that_it_remembers(api: Calls) -> None:
    """Producers are listed by id with their last record, in pages, and a partition without producers lists none."""
    await api.create("flights", partitions=2)
    for producer in (12, 3, 7):
        await api.send("flights", sequenced(0, [b"a", b"b"], producer_id=producer))
    await api.send("flights", sequenced(2, [b"c"], producer_id=3))
    path = "/v1/topics/flights/partitions/0/producers"
    first = (await api.call("GET", f"{path}?limit=2")).json
    rest = (await api.call("GET", f"{path}?limit=2&after={first['next']}")).json
    other = (await api.call("GET", "/v1/topics/flights/partitions/1/producers")).json
    found = [*first["items"], *rest["items"]]

    assert [each["producer_id"] for each in found] == [3, 7, 12]
    assert [each["last_sequence"] for each in found] == [2, 1, 1]
    assert [each["last_offset"] for each in found] == [6, 5, 1]
    assert {each["open_from_offset"] for each in found} == {None}
    assert other == {"items": [], "next": None}


@pytest.mark.parametrize("content_type", ["application/json", "application/vnd.apache.arrow.stream"])
async def test_bodies_without_batches_name_their_producer_in_headers(api: Calls, content_type: str) -> None:
    """A JSON or Arrow request with three producer headers is stored once, and its repeat is answered as a duplicate."""
    import pyarrow as pa

    await api.create("flights")
    sink = pa.BufferOutputStream()
    table = pa.table({"value": pa.array([b"a", b"b"], pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = b'[{"value": "a"}, {"value": "b"}]' if "json" in content_type else sink.getvalue().to_pybytes()
    who = {"fairlead-producer-id": "9", "fairlead-producer-epoch": "3", "content-type": content_type}
    path = "/v1/topics/flights/partitions/0/records"

    answers = [
        await api.call("POST", path, body, {**who, "fairlead-base-sequence": sequence})
        for sequence in ("0", "2", "0", "2")
    ]

    assert [answer.json["base_offset"] for answer in answers] == [0, 2, 0, 2]
    assert [answer.json["duplicate"] for answer in answers] == [False, False, True, True]
    assert await api.values("flights") == [b"a", b"b"] * 2


@pytest.mark.slow
async def test_refusals_carry_the_producers_state(api: Calls) -> None:
    """A refused batch is answered with the expected sequence, the producer id and the current epoch."""
    await api.create("flights")
    unknown = await api.send("flights", one(3))
    await api.send("flights", one(0))
    ahead = await api.send("flights", one(2))
    await api.send("flights", one(0, epoch=4))
    fenced = await api.send("flights", one(1))

    assert (unknown.status, unknown.code, unknown.json["producer_id"]) == (409, "unknown_producer", 7)
    assert (ahead.status, ahead.code, ahead.json["expected"]) == (409, "out_of_order_sequence", 1)
    assert (fenced.status, fenced.code, fenced.json["producer_epoch"]) == (403, "producer_fenced", 4)
    assert await api.values("flights") == [b"0", b"0"]


async def test_bursts_of_five_are_ordered(api: Calls) -> None:
    """Five concurrent requests from a producer on one connection are stored in the order of their sequences."""
    await api.create("flights", durability="replicated")
    order = random.Random(5)
    answers: list[Answer] = []
    for burst in range(60):
        sequences = list(range(burst * BURST, burst * BURST + BURST))
        order.shuffle(sequences)
        answers += await asyncio.gather(*(api.send("flights", one(sequence)) for sequence in sequences))

    assert {answer.status for answer in answers} == {200}
    assert await api.values("flights") == [b"%d" % sequence for sequence in range(60 * BURST)]


async def test_bursts_with_repeats_store_each_once(api: Calls) -> None:
    """Five concurrent batches that are each sent twice get ten answers and are stored once."""
    await api.create("flights", durability="replicated")
    order = random.Random(7)
    for burst in range(30):
        sequences = list(range(burst * BURST, burst * BURST + BURST)) * 2
        order.shuffle(sequences)
        # Ten requests are in flight, more than the broker's limit, so refused requests are repeated.
        answers = await asyncio.gather(*(api.send("flights", one(sequence)) for sequence in sequences))
        for sequence, answer in zip(sequences, answers, strict=True):
            if answer.status != 200:
                assert (await api.send("flights", one(sequence))).json["duplicate"], answer

    assert await api.values("flights") == [b"%d" % sequence for sequence in range(30 * BURST)]


async def test_a_large_request_is_not_overtaken_by_small_ones(api: Calls) -> None:
    """Four concurrent requests of 2 kB do not overtake a request of 1.5 MB from the same producer."""
    await api.create("flights")
    sequence, expected = 0, []
    for round_ in range(10):
        large = [b"%d-" % round_ + bytes(15_000)] * 100
        small = [b"%d." % round_ + bytes(200)] * 10
        batches = [sequenced(sequence, large)]
        batches += [sequenced(sequence + 100 + 10 * index, small) for index in range(4)]
        sequence += 140
        expected += large + small * 4
        answers = await asyncio.gather(*(api.send("flights", batch) for batch in batches))

        assert {answer.status for answer in answers} == {200}, answers

    assert await api.values("flights") == expected


async def _share(address: str, take: Callable[[], int | None]) -> list[int]:
    """Send a batch for each sequence that the source returns; return the statuses."""
    statuses = []
    async with Calls(address) as calls:
        while (sequence := take()) is not None:
            statuses.append((await calls.send("shared", one(sequence))).status)
    return statuses


async def _own(address: str, producer_id: int) -> list[int]:
    """Send a hundred batches, each twice; return the statuses."""
    statuses = []
    async with Calls(address) as calls:
        for sequence in range(100):
            batch = sequenced(sequence, [b"%d:%d" % (producer_id, sequence)], producer_id=producer_id)
            statuses += [(await calls.send("own", batch)).status for _ in range(2)]
    return statuses


@pytest.mark.scenario
@pytest.mark.slow
def test_threads_that_share_a_producer_keep_its_order(program: BrokerProgram) -> None:
    """Batches keep the order of one producer that five threads share, and of eight producers in separate threads."""
    asyncio.run(program.start())
    asyncio.run(_create(program.address))
    taken, lock = iter(range(400)), threading.Lock()

    def take() -> int | None:
        with lock:
            return next(taken, None)

    with ThreadPoolExecutor(13) as threads:
        work = [threads.submit(asyncio.run, _share(program.address, take)) for _ in range(5)]
        work += [threads.submit(asyncio.run, _own(program.address, number)) for number in range(8)]
        statuses = {status for each in work for status in each.result()}
    shared, separate = asyncio.run(_read(program.address))

    assert statuses == {200}
    assert shared == [b"%d" % sequence for sequence in range(400)]
    for producer_id in range(8):
        mine = [value for value in separate if value.startswith(b"%d:" % producer_id)]
        assert mine == [b"%d:%d" % (producer_id, sequence) for sequence in range(100)]


async def _create(address: str) -> None:
    async with Calls(address) as calls:
        await calls.create("shared")
        await calls.create("own")


async def _read(address: str) -> tuple[list[bytes], list[bytes]]:
    async with Calls(address) as calls:
        return await calls.values("shared"), await calls.values("own")


async def test_sequences_wrap_on_the_wire(start: StartBroker, connect: Connect) -> None:
    """A producer at the highest sequence continues at 0, inside a batch, and its repeats are recognised."""
    broker = await start()
    api = await connect(str(broker.addresses.data))
    topic_id = await api.create("flights")
    await broker.stop()
    folder = broker.broker.settings.data / topic_id / "0"
    state = ProducerState()
    state.replay(7, 0, stored_batch(2**31 - 4, 1, 0, SystemClock().now_us()))
    (folder / f"{0:020d}.producers").write_bytes(encode_snapshot(Snapshot(0, state)))
    api = await connect(str((await start()).addresses.data))

    answers = [
        await api.send("flights", sequenced(2**31 - 2, [b"a", b"b", b"c"])),
        await api.send("flights", sequenced(1, [b"d"])),
        await api.send("flights", sequenced(2**31 - 2, [b"a", b"b", b"c"])),
    ]

    assert [(answer.json["base_offset"], answer.json["duplicate"]) for answer in answers] == [
        (0, False),
        (3, False),
        (0, True),
    ]
    assert await api.values("flights") == [b"a", b"b", b"c", b"d"]
