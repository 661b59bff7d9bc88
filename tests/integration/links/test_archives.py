"""A mirror with its own log start keeps records that its source no longer has, until they are deleted on request."""

from __future__ import annotations

from cluster_kit import Cluster
from fairlead import Admin
from fairlead_api.bodies.links import AlterLinkPolicies, AlterLinkRequest, LinkPolicies
from fairlead_api.identifiers import TopicId
from link_kit import link, mirrored, until, url

MIB = 1 << 20
OFTEN = {"log.retention.check.interval.ms": 20}


async def test_an_archive_keeps_records_until_its_own_retention_or_a_deletion(
    source: Cluster, target: Cluster
) -> None:
    """Retention of the source deletes nothing from the archive. A deletion on request does, below the source's start.

    With the policy `source`, the log start of the mirror follows the source again.
    """
    sizes = {"segment_bytes": MIB, "retention_bytes": MIB, "retention_ms": -1}
    topic_id = await source.topic("flights", replication_factor=1, **sizes)
    flights = await source.led("flights", topic_id)
    own = {"retention.bytes": -1}
    await link(source, target, policies=LinkPolicies(log_start="own"), config=own)
    for number in range(10):
        await flights.produce(bytes([number]) * (MIB * 6 // 10))
    await mirrored(target, topic_id, 10)
    async with Admin(url(source)) as at_source, Admin(url(target)) as admin:
        for broker in (1, 2):
            await admin.alter_broker_config(broker, OFTEN)
        await at_source.alter_broker_config(1, OFTEN)
        await until(lambda: _starts_in(source, topic_id, 3, 9), "the retention of the source deletes nothing")
        await flights.produce(b"after the retention")
        await mirrored(target, topic_id, 11)
        kept = [target.log(broker, topic_id).log_start_offset for broker in (1, 2)]
        await at_source.delete_records("flights", 0, 2)
        await until(lambda: _starts_in(target, topic_id, 2, 2), "the archive keeps deleted records")
        await flights.produce(b"after the deletion")
        await until(lambda: _remembers(target, topic_id, 2), "a replica does not know of the deletion")
        limited = AlterLinkRequest(config={"retention.bytes": 3 * MIB})
        await admin.alter_link("east", limited)
        await until(
            lambda: _starts_in(target, topic_id, 3, 6), "the retention of the archive deletes nothing"
        )
        archived = target.log(1, topic_id).log_start_offset
        at_start = source.log(1, topic_id).log_start_offset
        await admin.alter_link("east", AlterLinkRequest(policies=AlterLinkPolicies(log_start="source")))
        await until(
            lambda: _starts_in(target, topic_id, at_start, 12), "the mirror does not follow its source"
        )
        described = await admin.describe_link("east")

    assert kept == [0, 0]
    assert archived < at_start
    assert described.policies.log_start == "source"


async def _starts_in(cluster: Cluster, topic_id: TopicId, least: int, most: int) -> bool:
    """Return whether every replica's log start is in a range of offsets."""
    return all(least <= cluster.log(broker, topic_id).log_start_offset <= most for broker in cluster.brokers)


async def _remembers(cluster: Cluster, topic_id: TopicId, offset: int) -> bool:
    return all(cluster.log(broker, topic_id).deleted_to == offset for broker in cluster.brokers)
