"""A compacted topic with three replicas: each replica cleans its own log, and clients continue with a new leader."""

from __future__ import annotations

import asyncio

import pytest

from cleaning_kit import committed, newest
from cluster_kit import Cluster, until
from fairlead import Table
from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_api.problems import ProblemError

EAGER = {"config_values": {"log.cleaner.backoff.ms": 20}, "limits": {"checkpoint_interval_seconds": 0.05}}
KEYS = 10


async def start_eager(cluster: Cluster) -> None:
    """Start every broker again, with a cleaner that searches often."""
    for broker in (1, 2, 3):
        await cluster.stop(broker)
        await cluster.start(broker, **EAGER)


def addresses(cluster: Cluster) -> list[str]:
    """Return the URLs of the running brokers."""
    return [f"http://{each.addresses.data}" for each in cluster.brokers.values()]


@pytest.mark.scenario
async def test_replicas_clean_their_own_logs_and_agree(cluster: Cluster) -> None:
    """Each replica keeps the newest record of each key, even if the leader stops while a table is being written."""
    await start_eager(cluster)
    topic_id = await cluster.topic(
        "accounts", cleanup_policy="compact", segment_ms=1, min_cleanable_dirty_ratio=0.01
    )
    await cluster.led("accounts", topic_id)
    async with Table(addresses(cluster), "accounts") as table:
        for number in range(60):
            if number == 30:
                leader = cluster.leader(topic_id)
                assert leader is not None
                await cluster.stop(leader)
            written = await table.put(b"k%d" % (number % KEYS), b"%d" % number)
        await table.wait_for(written, timeout="60s")
        shown = dict(table.items())
    await cluster.start(leader, **EAGER)
    await cluster.in_sync(topic_id, 1, 2, 3)
    logs = [cluster.log(broker, topic_id) for broker in (1, 2, 3)]
    for log in logs:
        log.roll_if_due(TimestampUs(2**62))
    await until(lambda: all(log.cleaning.cleaned >= 60 for log in logs), "not every replica is cleaned")
    tables = [newest(committed(log)) for log in logs]

    assert shown == {b"k%d" % key: b"%d" % (50 + key) for key in range(KEYS)}
    assert [{key: each.value for key, each in found.items()} for found in tables] == [shown] * 3
    assert [sorted(each.offset for each in found.values()) for found in tables] == [list(range(50, 60))] * 3
    assert all(len(committed(log)) < 60 for log in logs)


@pytest.mark.scenario
@pytest.mark.parametrize("mode", ["isr", "quorum"])
async def test_no_deleted_key_comes_back_with_a_replica_that_was_away(cluster: Cluster, mode: str) -> None:
    """A replica that was away for longer than `delete.retention.ms` lacks the deleted key when it later leads."""
    await start_eager(cluster)
    topic_id = await cluster.topic(
        "accounts",
        cleanup_policy="compact",
        replication_mode=mode,
        segment_ms=1,
        min_cleanable_dirty_ratio=0,
        delete_retention_ms=0,
    )
    await cluster.led("accounts", topic_id)
    async with Table(addresses(cluster), "accounts") as table:
        await table.put(b"kept", b"1")
        await table.put(b"deleted", b"1")
        await cluster.in_sync(topic_id, 1, 2, 3)
        leader = cluster.leader(topic_id)
        away, other = (each for each in (1, 2, 3) if each != leader)
        await cluster.stop(away)
        await cluster.in_sync(topic_id, leader, other)
        await table.delete(b"deleted")
        # The next leader has never heard of the replica that is away, so nothing keeps the tombstone for it.
        await cluster.stop(leader)
        await cluster.start(leader, **EAGER)
        await cluster.led("accounts", topic_id)
        await cluster.in_sync(topic_id, leader, other)
        leader = cluster.leader(topic_id)
        assert leader is not None

        # A round may begin before the first check.
        await table.put(b"filler", b"")
        async with asyncio.timeout(60):
            while b"deleted" in {record.key for record in committed(cluster.log(leader, topic_id))}:
                await table.put(b"filler", b"")
    await cluster.start(away, **EAGER)
    await cluster.in_sync(topic_id, 1, 2, 3)
    # A voter returns before it has every record.
    await cluster.equal(topic_id, Offset(0))
    log = cluster.log(away, topic_id)
    await until(
        lambda: log.checkpoint_high_watermark == log.end_offset, "the replica's records are not committed"
    )
    copied_again = cluster.broker(away).telemetry.registry.get_sample_value(
        "fairlead_replica_copied_again_total"
    )
    left = newest(committed(log))
    if mode == "isr":
        # A voter cannot lead alone.
        for broker in {1, 2, 3} - {away}:
            await cluster.stop(broker)
        await cluster.led("accounts", topic_id)
        assert cluster.leader(topic_id) == away
    async with Table(addresses(cluster), "accounts") as table:
        await table.caught_up("60s")
        shown = dict(table.items())

    assert copied_again == 1
    assert left.keys() == shown.keys() == {b"kept", b"filler"}
    assert shown == {b"kept": b"1", b"filler": b""}


@pytest.mark.scenario
async def test_producers_go_on_over_a_cleaning_and_a_change_of_leader(cluster: Cluster) -> None:
    """The next leader recognizes a producer's last batches, although all replicas have removed their records."""
    await start_eager(cluster)
    topic_id = await cluster.topic("accounts", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    client = await cluster.led("accounts", topic_id)

    def batch(sequence: int) -> bytes:
        """Return the producer's batch of two records of one key."""
        values = [b"%d" % number for number in (sequence, sequence + 1)]
        columns = record_batch(values, [b"k", b"k"], default_timestamp_us=1_700_000_000_000_000)
        return encode(columns, producer=ProducerStamp(7, 0, sequence)).to_bytes()

    sent = [batch(sequence) for sequence in range(0, 20, 2)]
    first = [(await client.produce_batch(each))[0] for each in sent]
    await client.produce_batch(encode(record_batch([b"last"], [b"k"], default_timestamp_us=0)).to_bytes())
    await cluster.copied(topic_id, 21)
    logs = [cluster.log(broker, topic_id) for broker in (1, 2, 3)]
    for log in logs:
        log.roll()
    await until(lambda: all(log.cleaning.cleaned == 21 for log in logs), "not every replica is cleaned")
    left = [[record.offset for record in committed(log)] for log in logs]
    leader = cluster.leader(topic_id)
    assert leader is not None
    await cluster.stop(leader)
    client = await cluster.led("accounts", topic_id)
    again = [(await client.produce_batch(each))[0] for each in sent[-5:]]
    [gap] = await client.produce_batch(batch(22))
    [following] = await client.produce_batch(batch(20))

    assert left == [[20]] * 3
    assert (
        [each.base_offset for each in again]
        == [each.base_offset for each in first[-5:]]
        == [10, 12, 14, 16, 18]
    )
    assert all(each.duplicate for each in again)
    assert isinstance(gap, ProblemError)
    assert (following.base_offset, following.duplicate) == (21, False)
