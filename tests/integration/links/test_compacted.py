"""Mirrors of compacted topics: both clusters clean their logs, and tombstones that a mirror missed are a gap."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from cleaning_kit import committed, newest
from cluster_kit import SECONDS_MAX, Cluster
from cluster_kit import until as until_known
from fairlead import Admin, Table
from fairlead_api.identifiers import TimestampUs, TopicId
from fairlead_broker.log import PartitionLog
from link_kit import handed_over, link, mirrored, paused, topic_of, until, url

EAGER = {"config_values": {"log.cleaner.backoff.ms": 20}, "limits": {"checkpoint_interval_seconds": 0.05}}
TABLE: Any = {"cleanup_policy": "compact", "segment_ms": 1, "min_cleanable_dirty_ratio": 0}


async def start_eager(cluster: Cluster) -> None:
    """Start every broker again, with a cleaner that searches often."""
    for broker in sorted(cluster.brokers):
        await cluster.stop(broker)
        await cluster.start(broker, **EAGER)


async def cleaned(logs: list[PartitionLog], end: int) -> None:
    """Wait until logs are cleaned up to an offset."""
    for log in logs:
        log.roll_if_due(TimestampUs(2**62))
    await until_known(lambda: all(log.cleaning.cleaned >= end for log in logs), "not every log is cleaned")


def tables(logs: list[PartitionLog]) -> list[dict[bytes | None, tuple[int, bytes | None]]]:
    """Return offset and value of the newest record of each key in each log."""
    return [{key: (each.offset, each.value) for key, each in newest(committed(log)).items()} for log in logs]


async def test_tables_are_equal_in_both_clusters_and_continue_after_a_hand_over(
    source: Cluster, target: Cluster
) -> None:
    """Each key has the same newest record at the same offset, although every replica cleans its own log.

    The source merges batches around the end of the mirror while the link is paused.
    """
    await start_eager(source)
    await start_eager(target)
    topic_id = await source.topic("accounts", replication_factor=1, **TABLE)
    await source.led("accounts", topic_id)
    await link(source, target)
    async with Table([url(source)], "accounts") as table:
        for number in range(40):
            await table.put(b"k%d" % (number % 8), b"%d" % number)
        await table.delete(b"k0")
        await mirrored(target, topic_id, 41)
        mirrors = [target.log(broker, topic_id) for broker in (1, 2)]
        await cleaned([source.log(1, topic_id), *mirrors], 41)
        both = tables([source.log(1, topic_id), *mirrors])
        async with Admin(url(target)) as admin:
            await admin.pause_link("east")
            await until(lambda: paused(target), "not every broker knows that the link is paused")
            for number in range(40, 60):
                await table.put(b"k%d" % (1 + number % 4), b"%d" % number)
            await cleaned([source.log(1, topic_id)], 61)
            await admin.resume_link("east")
        await mirrored(target, topic_id, 61)
    later = tables([source.log(1, topic_id), *(target.log(broker, topic_id) for broker in (1, 2))])
    found = await topic_of(target, "accounts")
    await handed_over(target, "accounts")
    await target.led("accounts", topic_id)
    async with Table([url(target, broker) for broker in (1, 2)], "accounts") as table:
        await table.caught_up("60s")
        before = dict(table.items())
        written = await table.put(b"k0", b"again")
        await table.wait_for(written, timeout="60s")

    assert both[0] == both[1] == both[2]
    assert all(len(committed(log)) < 41 for log in mirrors)
    assert later[0] == later[1] == later[2]
    assert found is not None
    assert found.partitions[0].gap is None
    assert before == {key: value for key, (_, value) in later[0].items() if value is not None}
    assert written.offset == 61


async def test_tombstones_that_a_paused_link_missed_are_a_gap(source: Cluster, target: Cluster) -> None:
    """A mirror that may keep a deleted key says so, with the offsets, until the loss is acknowledged."""
    await start_eager(source)
    topic_id = await source.topic("accounts", replication_factor=1, delete_retention_ms=0, **TABLE)
    await source.led("accounts", topic_id)
    await link(source, target)
    async with Table([url(source)], "accounts") as table, Admin(url(target)) as admin:
        # The cleaner of the source merges no two batches of this size, so the first one ends before the mirror does.
        await table.put(b"first", Random(1).randbytes(700_000))
        await table.put(b"deleted", b"1")
        await table.put(b"second", Random(2).randbytes(700_000))
        await mirrored(target, topic_id, 3)
        await admin.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
        await table.delete(b"deleted")
        log = source.log(1, topic_id)
        async with asyncio.timeout(SECONDS_MAX):
            while b"deleted" in {record.key for record in committed(log)}:
                await table.put(b"filler", b"")
        await admin.resume_link("east")
        await mirrored(target, topic_id, log.end_offset)
        told = await topic_of(target, "accounts")
        await admin.acknowledge_link("east")

        async def accepted() -> bool:
            found = await topic_of(target, "accounts")
            return found is not None and found.partitions[0].gap is None

        await until(accepted, "the gap stays")

    assert told is not None
    gap = told.partitions[0].gap
    assert gap is not None
    # A round of the source may have merged the last batch that the mirror has with later batches.
    assert gap.first_offset in (2, 3)
    assert 3 < gap.end_offset <= log.cleaning.removed
    assert (gap.skipped, gap.truncated) == (gap.end_offset - gap.first_offset, 0)
    assert _removed(target, topic_id) >= gap.end_offset


def _removed(target: Cluster, topic_id: TopicId) -> int:
    """Return the offset below which the log of the mirror's leader may lack tombstones."""
    leader = target.leader(topic_id)
    assert leader is not None, "the mirror has a leader"
    return target.log(leader, topic_id).cleaning.removed
