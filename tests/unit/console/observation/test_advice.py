"""Problems of a cluster, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairlead_api.bodies.metadata import (
    BrokerDescription,
    Metadata,
    PartitionMetadata,
    TopicMetadata,
    Versions,
)
from fairlead_api.bodies.operations import BrokerReport
from fairlead_api.bodies.security import WhoAmI
from fairlead_console.observation.advice import problems, warnings
from fairlead_console.observation.picture import Picture

BROKERS = (BrokerDescription(id=1, address="http://1:9520"), BrokerDescription(id=2, address="http://2:9520"))
GONE = BrokerDescription(id=2, address=None, state="gone")
STUCK = BrokerDescription(id=2, address="http://2:9520", state="draining", immovable=["orders-0"])
WHOLE = PartitionMetadata(
    partition=0, leader=1, leader_epoch=0, replicas=[1, 2], isr=[1, 2], elr=[], offline=[]
)
ALONE = PartitionMetadata(partition=1, leader=1, leader_epoch=0, replicas=[1, 2], isr=[1], elr=[], offline=[])
REFUSING = PartitionMetadata(
    partition=2, leader=1, leader_epoch=0, replicas=[1, 2], isr=[1], elr=[], offline=[], min_isr=2
)
UNLED = PartitionMetadata(
    partition=3, leader=None, leader_epoch=0, replicas=[2], isr=[], elr=[2], offline=[2], min_isr=0
)
GIB = 1024 * 1024 * 1024


def picture(
    partitions: Sequence[PartitionMetadata] = (WHOLE,),
    brokers: Sequence[BrokerDescription] = BROKERS,
    controller: int | None = 1,
    free: int = GIB,
) -> Picture:
    """Return a picture of a cluster of two brokers, whose disks have a GiB each."""
    versions = Versions(
        release="0", api=[], batch_formats=[], codecs=[], cluster_id="x", cluster="c", feature_level=1
    )
    caller = WhoAmI(
        principal="", groups=[], source="", token_id=None, expires_at=None, superuser=False, mode="open"
    )
    topics = [TopicMetadata(name="orders", topic_id="x", partitions=list(partitions))]
    metadata = Metadata(cluster_id="x", controller=controller, brokers=[], topics=topics)
    reports = {2: BrokerReport(broker=2, disk_total_bytes=GIB, disk_free_bytes=free)}
    return Picture(0.0, versions, caller, metadata, list(brokers), {}, reports=reports)


def test_a_healthy_cluster_has_no_problems() -> None:
    """A cluster with a controller, its brokers, all replicas and free disks needs no advice."""
    assert (problems(picture()), warnings(picture())) == ([], [])


@pytest.mark.parametrize(
    ("seen", "named", "command", "path"),
    [
        (picture(controller=None), "no controller", "fairlead cluster health", "/brokers"),
        (picture(brokers=[BROKERS[0], GONE]), "Broker 2", "fairlead broker list", "/brokers"),
        (picture(brokers=[GONE, GONE]), "Brokers 2, 2 do not", "fairlead broker list", "/brokers"),
        (replace(picture(), silent=frozenset({2})), "Broker 2", "fairlead broker reports", "/brokers"),
        (picture(free=0), "disk of broker 2", "fairlead broker reports", "/brokers"),
        (picture([UNLED]), "1 partition without a leader", "fairlead cluster health", "/topics?sort=state"),
        (picture([REFUSING] * 2), "2 partitions cannot", "fairlead cluster health", "/topics?sort=state"),
        (picture([ALONE]), "replicas of 1 partition", "fairlead cluster health", "/topics?sort=state"),
        (picture(brokers=[BROKERS[0], STUCK]), "orders-0", "fairlead broker undrain 2", "/brokers"),
    ],
    ids=[
        "controller",
        "gone",
        "several gone",
        "silent",
        "full",
        "leader",
        "min.insync",
        "catching up",
        "stuck",
    ],
)
def test_a_problem_names_its_objects_and_what_to_do(
    seen: Picture, named: str, command: str, path: str
) -> None:
    """Each kind of problem gives an advice with a command and a page."""
    first = problems(seen)[0]

    assert (first.command, first.path) == (command, path)
    assert named in first.sentence


def test_the_most_urgent_problem_is_first() -> None:
    """Brokers that do not run precede the partitions that lack them."""
    found = problems(picture([ALONE, UNLED], [BROKERS[0], GONE], controller=None))

    assert [each.command.split()[-1] for each in found] == ["health", "list", "health", "health"]


def test_little_space_is_a_warning() -> None:
    """A disk with a little free space is no problem yet, and the overview warns of it."""
    seen = picture(free=GIB // 10)

    assert problems(seen) == []
    assert [each.command for each in warnings(seen)] == ["fairlead broker reports"]
