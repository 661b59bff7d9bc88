"""Comparison of a partition's replicas over HTTP, by the SDK and on the command line, at any broker."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
import pytest

from cleaning_kit import clean_log, order_for, roll
from cluster_kit import Cluster, until
from command_line_kit import CommandLine
from fairlead import Admin
from fairlead.errors import OffsetExpiredError, OffsetOutOfRangeError
from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.bodies.operations import PartitionDigest, ReplicaDigest
from fairlead_api.identifiers import Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_broker.log import PartitionLog
from fairlead_broker.log.cleaning.rounds import GroupCleaned, clean
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.peers.digests import DigestRequest
from fairlead_broker.runtime.peer_serving.digests import NEWEST_ATTEMPTS_MAX
from log_kit import FIRST_TIME_US
from refusals import missing
from warm_programs import search_path


def url(cluster: Cluster, broker: int) -> str:
    """Return the address of a broker for clients."""
    return f"http://{cluster.brokers[broker].addresses.data}"


async def filled(cluster: Cluster, count: int = 30) -> tuple[TopicId, list[int]]:
    """Create a topic with one record per batch on every broker; return its id and the brokers, leader first."""
    topic_id = await cluster.topic("flights")
    flights = await cluster.led("flights", topic_id)
    for number in range(count):
        await flights.produce(b"value %d" % number * 50)
    await cluster.copied(topic_id, count)
    leader = cluster.leader(topic_id)
    assert leader is not None
    await until(
        lambda: all(
            each.high_watermark == count for each in cluster.broker(leader).replicas.of_topic(topic_id)
        ),
        "not everything is committed",
    )
    return topic_id, [leader, *(each for each in cluster.brokers if each != leader)]


def flip(cluster: Cluster, broker: int, topic_id: TopicId, share: float) -> None:
    """Flip a bit in a running broker's replica."""
    [segment] = (cluster.path / str(broker) / topic_id / "0").glob("*.log")
    with segment.open("r+b") as file:
        at = int(segment.stat().st_size * share)
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def by_broker(compared: PartitionDigest) -> dict[int, ReplicaDigest]:
    """Return the digest of each replica, by broker."""
    return {replica.broker: replica for replica in compared.replicas}


async def test_whole_copies_have_one_digest(cluster: Cluster) -> None:
    """Undamaged replicas have the same digest at every broker, and a different range has a different digest."""
    _, brokers = await filled(cluster)
    async with Admin(url(cluster, brokers[1])) as admin:
        whole = await admin.compare_replicas("flights", 0)
        part = await admin.compare_replicas("flights", 0, 10, 20)
        empty = await admin.compare_replicas("flights", 0, 30)

        assert (whole.first_offset, whole.end_offset, whole.next_offset) == (0, 30, None)
        assert (part.first_offset, part.end_offset, empty.end_offset) == (10, 20, 30)
        assert sorted(each.broker for each in whole.replicas) == [1, 2, 3]
        for compared in (whole, part, empty):
            assert compared.identical
            assert compared.leader == brokers[0]
            assert len({each.digest for each in compared.replicas}) == 1
        assert len({each.replicas[0].digest for each in (whole, part, empty)}) == 3
        with pytest.raises(OffsetOutOfRangeError):
            await admin.compare_replicas("flights", 0, 0, 31)
        await admin.delete_records("flights", 0, 5)
        with pytest.raises(OffsetExpiredError):
            await admin.compare_replicas("flights", 0, 4)


@pytest.mark.parametrize("place", [0, 1], ids=["leader", "follower"])
async def test_a_damaged_copy_is_named(cluster: Cluster, place: int) -> None:
    """A replica with a changed bit is reported as damaged, with its offset, and the partition record stays the same."""
    topic_id, brokers = await filled(cluster)
    before = cluster.record(topic_id)
    flip(cluster, brokers[place], topic_id, 0.5)
    async with Admin(url(cluster, brokers[2])) as admin:
        compared = await admin.compare_replicas("flights", 0)
        beside = await admin.compare_replicas("flights", 0, 0, 5)
    damaged = by_broker(compared).pop(brokers[place])
    others = [by_broker(compared)[each] for each in brokers if each != brokers[place]]

    assert not compared.identical
    assert (damaged.state, damaged.digest) == ("damaged", None)
    assert damaged.damaged_offset in range(13, 17)
    assert {each.state for each in others} == {"compared"}
    assert len({each.digest for each in others}) == 1
    assert beside.identical
    assert cluster.record(topic_id) == before


async def filled_with_keys(cluster: Cluster) -> tuple[TopicId, list[PartitionLog]]:
    """Create a compacted topic with two closed segments on every broker; return the logs, the leader's log first.

    The brokers' own cleaners find no due round.
    """
    topic_id = await cluster.topic("flights", cleanup_policy="compact", min_cleanable_dirty_ratio=1)
    flights = await cluster.led("flights", topic_id)
    leader = cluster.leader(topic_id)
    assert leader is not None
    brokers = sorted(cluster.brokers, key=lambda each: each != leader)
    for end in (6, 12, 18):
        for number in range(end - 6, end):
            columns = record_batch([b"%d" % number], [b"k%d" % (number % 2)], default_timestamp_us=0)
            await flights.produce_batch(encode(columns).to_bytes())
        await cluster.copied(topic_id, end)
        logs = [cluster.log(each, topic_id) for each in brokers]
        if end < 18:
            for log in logs:
                roll(log)
    await until(
        lambda: all(log.checkpoint_high_watermark == 18 for log in logs), "not everything is committed"
    )
    return topic_id, logs


def rewrite_first_segment(log: PartitionLog) -> None:
    """Carry out a round that is killed after its first group of segments."""
    order, generation = order_for(log, FIRST_TIME_US)
    for event in clean(msgspec.structs.replace(order, segment_bytes=1), PosixStorage()):
        if isinstance(event, GroupCleaned):
            assert log.swap(event, generation, TimestampUs(0))
            return


@pytest.mark.parametrize("place", [0, 2], ids=["leader", "follower"])
async def test_cleaned_copies_are_compared_above_the_cleaned_offsets(cluster: Cluster, place: int) -> None:
    """Replicas that cleaned differently have one digest above every replaced segment, also of an unfinished round."""
    _, logs = await filled_with_keys(cluster)
    async with Admin(url(cluster, 1)) as admin:
        raw = await admin.compare_replicas("flights", 0)
        rewrite_first_segment(logs[place])
        unfinished = await admin.compare_replicas("flights", 0)
        clean_log(logs[1], FIRST_TIME_US)
        cleaned = await admin.compare_replicas("flights", 0)
        await admin.alter_topic("flights", config={"cleanup.policy": "delete"})
        await until(lambda: not any(log.config.compacts for log in logs), "the policy has not changed")
        deleting = await admin.compare_replicas("flights", 0)

    for found, first in ((raw, 0), (unfinished, 6), (cleaned, 12), (deleting, 12)):
        assert (found.identical, found.first_offset, found.end_offset) == (True, first, 18)
    assert [log.cleaning.cleaned for log in logs] == [0, 12, 0]


@pytest.mark.parametrize("place", [0, 2], ids=["leader", "follower"])
async def test_a_copy_that_is_cleaned_during_a_comparison_does_not_differ(
    cluster: Cluster, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison in progress continues above the segments that a replica replaces."""
    monkeypatch.setattr("fairlead_broker.runtime.peer_serving.digests.PIECE_BYTES", 1)
    topic_id, logs = await filled_with_keys(cluster)
    broker = cluster.leader(topic_id)
    assert broker is not None
    digests = cluster.broker(broker).digests
    take, pieces = digests._take_piece, list[Offset]()

    async def take_piece(request: DigestRequest, *rest: Any) -> None:
        """Clean a replica between two pieces."""
        if len(pieces) == 2:
            rewrite_first_segment(logs[place])
        pieces.append(request.first_offset)
        await take(request, *rest)

    monkeypatch.setattr(digests, "_take_piece", take_piece)
    async with Admin(url(cluster, 1)) as admin:
        found = await admin.compare_replicas("flights", 0)

    assert (found.identical, found.first_offset, found.end_offset) == (True, 6, 18)
    assert pieces[:3] == [0, 1, 2]


@pytest.mark.parametrize("rounds", [1, NEWEST_ATTEMPTS_MAX])
async def test_newest_records_that_are_cleaned_above_the_range_do_not_differ(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """A comparison is repeated if a round removed a record that is the newest only below the end of the range."""
    topic_id, logs = await filled_with_keys(cluster)
    broker = cluster.leader(topic_id)
    assert broker is not None
    digests = cluster.broker(broker).digests
    take, ends = digests._take_piece, list[Offset]()

    async def take_piece(request: DigestRequest, *rest: Any) -> None:
        """Clean a follower above the end of the range, after the leader has read the range."""
        ends.append(request.end_offset)
        if len(ends) <= rounds:
            end = request.end_offset + 2
            flights = await cluster.led("flights", topic_id)
            for key in (b"k0", b"k1"):
                columns = record_batch([b"later"], [key], default_timestamp_us=0)
                await flights.produce_batch(encode(columns).to_bytes())
            await cluster.copied(topic_id, end)
            await until(
                lambda: all(log.checkpoint_high_watermark == end for log in logs),
                "not everything is committed",
            )
            roll(logs[2])
            clean_log(logs[2], FIRST_TIME_US)
        await take(request, *rest)

    monkeypatch.setattr(digests, "_take_piece", take_piece)
    command = CommandLine({**os.environ, "PATH": search_path(), "FAIRLEAD_BOOTSTRAP": url(cluster, broker)})
    asked = ("partition", "digest", "flights", "0", "--latest", "--output", "json")
    is_decided = rounds < NEWEST_ATTEMPTS_MAX
    shown = await asyncio.to_thread(lambda: command(*asked, code=0 if is_decided else 1))
    [found] = msgspec.json.decode(shown, type=list[PartitionDigest])

    assert found.identical
    assert ends == [18, 20] if is_decided else [18, 20, 22, 24]
    assert (found.first_offset, found.end_offset) == (0, 20 if is_decided else 0)
    assert found.next_offset == (None if is_decided else 0)
    assert is_decided or missing(command.errors, "flights-0") == []


async def test_a_missing_part_and_a_missing_answer_differ(cluster: Cluster) -> None:
    """A broker that is not running and a broker without a replica are reported differently."""
    topic_id, brokers = await filled(cluster)
    held = cluster.broker(brokers[2]).replicas._hosted
    async with Admin(url(cluster, brokers[0])) as admin:
        await cluster.stop(brokers[1])
        known = cluster.broker(brokers[0]).metadata.brokers
        await until(lambda: brokers[1] not in known, "the leader has not noticed the stop")
        alone = by_broker(await admin.compare_replicas("flights", 0))
        copies = held.pop(topic_id)
        try:
            missing = by_broker(await admin.compare_replicas("flights", 0))
        finally:
            held[topic_id] = copies
        digests = cluster.broker(brokers[2]).digests
        beyond = await digests.digest(
            DigestRequest(
                topic_id=topic_id,
                partition=PartitionIndex(0),
                first_offset=Offset(20),
                end_offset=Offset(31),
                max_bytes=1,
            )
        )

    assert (alone[brokers[1]].state, alone[brokers[2]].state) == ("no_answer", "compared")
    assert "not registered" in (alone[brokers[1]].detail or "")
    assert (missing[brokers[1]].state, missing[brokers[2]].state) == ("no_answer", "not_held")
    assert (beyond.state, beyond.log_start_offset, beyond.log_end_offset) == ("not_held", 0, 30)


async def test_the_command_ends_with_1_where_copies_differ(cluster: Cluster) -> None:
    """The command exits with 0 if all replicas are equal, and otherwise with 1 and a table of replicas."""
    topic_id, brokers = await filled(cluster)
    command = CommandLine(
        {**os.environ, "PATH": search_path(), "FAIRLEAD_BOOTSTRAP": url(cluster, brokers[1])}
    )
    asked = ("partition", "digest", "flights", "0")
    same = await asyncio.to_thread(command, *asked)
    flip(cluster, brokers[2], topic_id, 0.9)
    differs = await asyncio.to_thread(lambda: command(*asked, "--from", "20", code=1))
    told = command.errors
    beside = await asyncio.to_thread(command, *asked, "--to", "10")
    lines = [line.split("\t") for line in differs.splitlines()]

    assert lines[0] == ["FROM", "TO", "BROKER", "STATE", "DIGEST", "HELD", "DETAIL"]
    assert {line[2]: line[3] for line in lines[1:]} == {
        str(brokers[0]): "leader", str(brokers[1]): "compared", str(brokers[2]): "damaged"
    }  # fmt: skip
    assert missing(told, "flights-0", "differ") == []
    assert [line.split("\t")[:2] for line in same.splitlines()[1:]] == [["0", "30"]] * 3
    assert [line.split("\t")[:2] for line in beside.splitlines()[1:]] == [["0", "10"]] * 3
