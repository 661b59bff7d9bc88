"""A compacted topic with three replicas: each cleans its own log, and a table continues after a change of leader."""

from __future__ import annotations

import pytest

from cleaning_kit import committed, newest
from cluster_kit import Cluster, until
from fairlead import Table
from fairlead_api.identifiers import TimestampUs

EAGER = {"config_values": {"log.cleaner.backoff.ms": 20}, "limits": {"checkpoint_interval_seconds": 0.05}}
KEYS = 10


@pytest.mark.scenario
async def test_replicas_clean_their_own_logs_and_agree(cluster: Cluster) -> None:
    """Each replica keeps the newest record of each key, even after the leader has stopped during a table's writes."""
    for broker in (1, 2, 3):
        await cluster.stop(broker)
        await cluster.start(broker, **EAGER)
    topic_id = await cluster.topic(
        "accounts", cleanup_policy="compact", segment_ms=1, min_cleanable_dirty_ratio=0.01
    )
    await cluster.led("accounts", topic_id)
    addresses = [f"http://{each.addresses.data}" for each in cluster.brokers.values()]
    async with Table(addresses, "accounts") as table:
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
