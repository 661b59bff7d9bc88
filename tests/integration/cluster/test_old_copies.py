"""A broker on an older copy of its data directory is not counted as in sync, because records are missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster_kit import Cluster
from fairlead_api.identifiers import BrokerId, TopicId
from fairlead_api.problems import ProblemError
from runtime_kit import TopicClient


async def live_again_and_go_back(
    cluster: Cluster, path: Path, broker: int, topic_id: TopicId, isr: tuple[int, ...]
) -> None:
    """Copy the directory of a stopped broker, let it store a record in another incarnation, and restore the copy."""
    await cluster.stop(broker)
    shutil.copytree(path / str(broker), path / "copy")
    await cluster.start(broker)
    await cluster.in_sync(topic_id, *isr)
    client = await cluster.led("flights", topic_id)
    await client.produce(b"later")
    await cluster.stop(broker)
    shutil.rmtree(path / str(broker))
    (path / "copy").rename(path / str(broker))
    await cluster.start(broker)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{"min_insync_replicas": 2}, {"replication_mode": "quorum"}])
async def test_others_have_the_records_and_the_copy_is_filled_up(
    cluster: Cluster, tmp_path: Path, config: dict[str, str | int]
) -> None:
    """A broker on an older copy first leaves the in-sync replicas or voters; then its replica is copied again."""
    topic_id = await cluster.topic("flights", replication_factor=2, **config)
    await (await cluster.led("flights", topic_id)).produce(b"first")
    one, other = (replica.broker for replica in cluster.record(topic_id).replicas)
    await live_again_and_go_back(cluster, tmp_path, one, topic_id, (one, other))
    await cluster.in_sync(topic_id, one, other)
    client = await cluster.led("flights", topic_id)
    last = await client.produce(b"last")

    generations = {each.broker: each.generation for each in cluster.record(topic_id).replicas}
    assert generations == {one: 1, other: 0}
    assert cluster.log(one, topic_id).end_offset == last.base_offset + 1
    assert cluster.broker(one).entry.membership.registration.quarantined == ()


def sample(cluster: Cluster, broker: int, metric: str) -> float | None:
    """Return the value of a metric of a broker."""
    return cluster.broker(broker).telemetry.registry.get_sample_value(metric)


@pytest.mark.slow
async def test_an_old_copy_without_other_replicas_serves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """A partition whose only replica is an older copy serves no requests, even after restarts."""
    topic_id = await cluster.topic("flights", replication_factor=1)
    await (await cluster.led("flights", topic_id)).produce(b"first")
    holder = cluster.leader(topic_id)
    assert holder is not None
    await live_again_and_go_back(cluster, tmp_path, holder, topic_id, (holder,))

    for _ in range(2):
        entry = cluster.broker(holder).entry
        [quarantined] = entry.membership.registration.quarantined
        assert quarantined.topic_id == topic_id
        assert sample(cluster, holder, "fairlead_quarantined_replicas") == 1
        assert {each.broker for each in cluster.record(topic_id).isr} == {holder}
        with pytest.raises(ProblemError):
            TopicClient(cluster.broker(BrokerId(holder)), "flights").handle()
        await cluster.stop(holder)
        await cluster.start(holder)
