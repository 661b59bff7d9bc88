"""A hand-over under load loses no record, and producers, groups and transactions continue at the mirror."""

from __future__ import annotations

import asyncio
import time

from cluster_kit import Cluster
from fairlead import Admin, TopicPartition
from fairlead_api.batch.batches import ProducerStamp, encode
from fairlead_api.batch.columns import record_batch
from fairlead_api.bodies.links import NamePatterns
from fairlead_api.identifiers import ProducerEpoch, ProducerId
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import AppendResult
from link_kit import handed_over, link, mirrored, paused, promoted, until, url, values
from refusals import refuses
from runtime_kit import TopicClient

WRITES_STOP_SECONDS_MAX = 20.0
"""Limit for a busy machine, which a hand-over exceeds only if it waits for a timeout. Benchmarks measure the time."""


class Writer:
    """A program that writes numbered records, and remembers which were acknowledged and when."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.number = 0
        self.last_at = 0.0

    async def write(self, flights: TopicClient) -> str | None:
        """Write one record; return the code of its refusal."""
        value = b"%d" % self.number
        try:
            await flights.produce(value)
        except ProblemError as problem:
            return problem.code
        self.number += 1
        self.acknowledged.append(value)
        self.last_at = time.monotonic()
        return None


async def test_a_partition_without_records_is_handed_over(source: Cluster, target: Cluster) -> None:
    """A topic whose records were all deleted before they were copied continues at the end of its source."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    await flights.produce(b"1", b"2", b"3")
    async with Admin(url(source)) as admin:
        await admin.delete_records("flights", 0, 3)
    await link(source, target)
    await handed_over(target, "flights")
    mirror = await target.led("flights", topic_id)
    last = await mirror.produce(b"after")

    assert last.base_offset == 3


async def test_a_partition_whose_later_records_were_skipped_is_handed_over(
    source: Cluster, target: Cluster
) -> None:
    """A mirror that skips every record of a later leader knows the leader's epoch, so the hand-over ends."""
    topic_id = await source.topic("flights", replication_factor=1)
    await (await source.led("flights", topic_id)).produce(b"1")
    await link(source, target)
    await mirrored(target, topic_id, 1)
    async with Admin(url(target)) as admin:
        await admin.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
        address = source.brokers[1].addresses.data
        await source.stop(1)
        await source.start(1, listen=address)
        await (await source.led("flights", topic_id)).produce(b"2", b"3")
        async with Admin(url(source)) as at_source:
            await at_source.delete_records("flights", 0, 3)
        await admin.resume_link("east")
    await handed_over(target, "flights")
    last = await (await target.led("flights", topic_id)).produce(b"after")

    assert last.base_offset == 3


async def test_a_hand_over_under_load_loses_nothing_and_stops_writes_briefly(
    source: Cluster, target: Cluster
) -> None:
    """Every acknowledged record is in the mirror once, and the mirror accepts records within two seconds."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights, writer = await source.led("flights", topic_id), Writer()
    await link(source, target)
    for _ in range(50):
        assert await writer.write(flights) is None
    await mirrored(target, topic_id, 50)

    async def reported() -> bool:
        """Return whether the metrics show the mirror and its source, each of which is first shown by its own round."""
        mirrors = target.metric("fairlead_link_topics", link="east", state="mirroring")
        return (mirrors, target.metric("fairlead_link_source_reachable", link="east")) == (1, 1)

    await until(reported, "the metrics do not show the mirror and its source")

    async def load() -> str:
        while (refusal := await writer.write(flights)) is None:
            pass
        return refusal

    async with Admin(url(target)) as admin:
        writing = asyncio.get_running_loop().create_task(load())
        await admin.promote_link("east", "all")
        refused = await writing
        stopped_at = writer.last_at

        async def accepted() -> bool:
            return await writer.write(await target.led("flights", topic_id)) is None

        await until(accepted, "the mirror accepts no records")
    began_at = writer.last_at
    await mirrored(target, topic_id, len(writer.acknowledged))

    assert target.metric("fairlead_link_promotion_seconds_count", link="east") == 1
    assert refused == "topic_moved"
    assert values(target, topic_id) == writer.acknowledged
    assert values(target, topic_id, 2) == writer.acknowledged
    assert began_at - stopped_at < WRITES_STOP_SECONDS_MAX


async def test_a_repeat_across_a_hand_over_is_recognised(source: Cluster, target: Cluster) -> None:
    """A producer that repeats its last batch at the promoted mirror gets the batch's offsets in the source."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    producer = await source.any.allocate_producer(None)
    other = await target.any.allocate_producer(None)
    stamp = ProducerStamp(producer.producer_id, producer.producer_epoch, 0)
    data = encode(record_batch([b"once"], default_timestamp_us=1), producer=stamp).to_bytes()
    [first] = await flights.produce_batch(data)
    await link(source, target)
    await mirrored(target, topic_id, 1)
    async with Admin(url(target)) as admin:
        await admin.promote_link("east", "all")
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
    mirror = await target.led("flights", topic_id)
    repeats: list[object] = []

    async def accepted() -> bool:
        """Repeat the batch; the leader of the mirror may learn of the promotion later than the administration."""
        repeats[:] = await mirror.produce_batch(data)
        return isinstance(repeats[0], AppendResult)

    await until(accepted, "the leader refuses the batch")
    [repeat] = repeats

    assert isinstance(first, AppendResult)
    assert isinstance(repeat, AppendResult)
    assert (repeat.base_offset, repeat.duplicate) == (first.base_offset, True)
    assert other.producer_id >> 32 != producer.producer_id >> 32


async def test_an_id_that_both_clusters_gave_is_not_a_repeat_in_the_mirror(
    source: Cluster, target: Cluster
) -> None:
    """A producer of the mirror's cluster with the id, epoch and sequence of a copied batch gets its own records stored.

    The next leader recognises the repeats of these records, and forgets the copied batch again.
    """
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    stamp = ProducerStamp(ProducerId(7), ProducerEpoch(0), 0)
    copied, own = (
        encode(record_batch(records, default_timestamp_us=1), producer=stamp).to_bytes()
        for records in ([b"copied"], [b"own"])
    )
    await flights.produce_batch(copied)
    await link(source, target)
    await handed_over(target, "flights")
    [stored] = await (await target.led("flights", topic_id)).produce_batch(own)
    leader = target.leader(topic_id, 0)
    assert leader is not None
    await target.stop(leader)
    [repeat] = await (await target.led("flights", topic_id)).produce_batch(own)

    assert isinstance(stored, AppendResult)
    assert isinstance(repeat, AppendResult)
    assert (stored.base_offset, stored.duplicate) == (1, False)
    assert (repeat.base_offset, repeat.duplicate) == (1, True)


async def test_a_hand_over_can_be_given_up(source: Cluster, target: Cluster) -> None:
    """While the mirror of a paused link lacks records, its hand-over can be abandoned: the source accepts records."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    await link(source, target)
    await mirrored(target, topic_id, 0)
    async with Admin(url(target)) as admin:
        await admin.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
    await flights.produce(b"not copied")
    async with Admin(url(target)) as admin:
        await admin.promote_link("east", "all")

        async def refused() -> bool:
            try:
                await flights.produce(b"refused")
            except ProblemError as problem:
                return problem.code == "topic_moved"
            return False

        await until(refused, "the source accepts records")
        [found] = await admin.take_back_link("east", ["flights"])
        await admin.resume_link("east")
    stored = await flights.produce(b"accepted")
    await mirrored(target, topic_id, stored.base_offset + 1)
    mirror = await target.led("flights", topic_id)
    with refuses("topic_is_mirror"):
        await mirror.produce(b"refused")

    assert found.state == "mirroring"
    assert values(target, topic_id)[-1] == b"accepted"


async def test_offsets_of_groups_are_copied_up_to_the_end_of_the_mirror(
    source: Cluster, target: Cluster
) -> None:
    """A group that the link names has its committed offset in the mirror; other groups are not copied."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    for number in range(5):
        await flights.produce(b"%d" % number)
    async with Admin(url(source)) as admin:
        for group, offset in (("team", 4), ("others", 2)):
            await admin.commit_group_offsets(group, {TopicPartition("flights", 0): offset})
    await link(source, target, groups=NamePatterns(include=["team"]))
    await mirrored(target, topic_id, 5)
    async with Admin(url(target)) as admin:
        await admin.promote_link("east", "all")
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
        offsets = await admin.group_offsets("team")
        groups = [each.group for each in (await admin.list_groups())]

    assert [each.offset for each in offsets.values()] == [4]
    assert groups == ["team"]
