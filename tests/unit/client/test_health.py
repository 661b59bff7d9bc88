"""Health of a cluster, which `fairlead cluster health` computes from metadata and brokers."""

from __future__ import annotations

from typing import Any

from fairlead.health import health_of, stuck
from fairlead_api.bodies.metadata import BrokerDescription, Metadata, PartitionMetadata, TopicMetadata
from refusals import missing


def broker(number: int, **about: Any) -> BrokerDescription:
    """Return a running broker, with the given fields changed."""
    return BrokerDescription(id=number, **{"address": f"http://b{number}", **about})


def partition(number: int, isr: list[int], **about: Any) -> PartitionMetadata:
    """Return a partition on brokers 1 to 3, led by broker 1, with a minimum of two in-sync replicas."""
    usual: dict[str, Any] = {"leader": 1, "replicas": [1, 2, 3], "offline": [], "min_isr": 2}
    return PartitionMetadata(partition=number, leader_epoch=1, isr=isr, elr=[], **{**usual, **about})


def metadata(*partitions: PartitionMetadata, controller: int | None = 1) -> Metadata:
    """Return the metadata of a cluster with one topic."""
    topic = TopicMetadata(name="t", topic_id="i", partitions=list(partitions))
    return Metadata(cluster_id="c", controller=controller, brokers=[], topics=[topic])


BROKERS = [broker(1), broker(2), broker(3)]


def test_a_whole_cluster_is_healthy() -> None:
    """A complete cluster is healthy, even with a cordoned or draining broker, which is reported."""
    found = health_of(
        metadata(partition(0, [1, 2, 3])),
        [broker(1, cordoned=True), broker(2, state="draining", cordoned=True), broker(3)],
    )

    assert found.healthy
    assert (found.brokers, found.partitions, found.ailing) == (3, 1, [])
    assert (found.cordoned, found.draining, found.gone) == ([1], [2], [])
    assert [(each.broker, each.replicas) for each in found.drains] == [(2, 1)]


def test_what_is_missing_is_counted_by_how_bad_it_is() -> None:
    """Partitions without a leader, below min.insync.replicas, and with missing replicas are counted."""
    found = health_of(
        metadata(
            partition(0, [1, 2], offline=[3]),
            partition(1, [1], offline=[2, 3]),
            partition(2, [], leader=None),
            partition(3, [1, 2, 3]),
        ),
        [*BROKERS[:2], broker(3, address=None, state="gone")],
    )

    assert not found.healthy
    assert (found.brokers, found.gone) == (2, [3])
    assert (found.under_replicated, found.under_min_isr, found.without_leader) == (3, 2, 1)
    assert [(each.partition, each.in_sync, each.missing) for each in found.ailing] == [
        (0, 2, [3]),
        (1, 1, [2, 3]),
        (2, 0, [1, 2, 3]),
    ]


def test_a_move_under_way_is_no_ailment() -> None:
    """A partition that is being moved is healthy although its added replica is not in sync."""
    moving = partition(0, [1, 2, 3], replicas=[1, 2, 4, 3], adding=[4], removing=[3])
    found = health_of(metadata(moving), [*BROKERS, broker(4)])

    assert found.healthy
    assert (found.moving, found.under_replicated) == (1, 0)


def test_without_a_controller_nothing_is_healthy() -> None:
    """A cluster without a controller is unhealthy, because leaders could not be elected."""
    assert not health_of(metadata(partition(0, [1, 2, 3]), controller=None), BROKERS).healthy


def test_a_drain_that_cannot_end_names_the_first_partitions() -> None:
    """The report on a drain that cannot finish names the first stuck partitions, even if the drained broker is gone."""
    stays = [f"t-{number}" for number in range(9)]
    gone = broker(3, address=None, state="gone", cordoned=True, immovable=stays)
    found = health_of(metadata(partition(0, [1, 2], offline=[3])), [*BROKERS[:2], gone])

    assert (found.draining, found.gone, found.cordoned) == ([3], [3], [])
    assert found.drains[0].immovable == stays
    assert (missing(stuck(3, stays), *stays), missing(stuck(3, stays), 3)) == (stays[5:], [])
