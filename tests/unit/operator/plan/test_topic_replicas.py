"""The choice of brokers when the number of replicas of a partition changes."""

from __future__ import annotations

from collections import Counter

from fairlead_operator.plan.topic_observed import LiveBroker, LivePartition, LiveTopic, LiveTopics, placed
from fairlead_operator.plan.topic_replicas import ReplicaChooser


def brokers(*racks: str | None) -> list[LiveBroker]:
    """Return running brokers with ids from 1, in the given racks."""
    return [LiveBroker(number, rack) for number, rack in enumerate(racks, 1)]


def partition(*replicas: int, isr: tuple[int, ...] | None = None) -> LivePartition:
    """Return a partition on the given brokers, all in sync by default."""
    return LivePartition(0, replicas, isr=replicas if isr is None else isr)


def test_partitions_that_are_still_being_made_have_no_place() -> None:
    """A partition that is still being created has no placement, and does not lower the number of replicas."""
    made = LivePartition(1, (1, 2, 3))
    half = LiveTopic(
        name="t", topic_id="id", partitions=2, replication_factor=3, placement=placed([partition(), made])
    )

    assert half.placement == (made,)
    assert half.replicas == 3
    assert placed([partition()]) == ()


def test_a_free_rack_goes_before_a_free_broker() -> None:
    """For a new replica, an unused rack comes first, then the broker with the least load, then the lowest id."""
    chooser = ReplicaChooser(brokers("a", "a", "b", "b"), {3: 5})

    assert chooser.choose(partition(1), 2) == (1, 4)
    assert chooser.choose(partition(1), 3) == (1, 4, 2)


def test_without_racks_the_load_decides() -> None:
    """Brokers without a rack count as one rack, within which the broker with the least load is chosen."""
    assert ReplicaChooser(brokers(None, None, None), {2: 1}).choose(partition(1), 2) == (1, 3)


def test_new_replicas_are_spread_evenly() -> None:
    """New replicas are spread evenly, because each chosen replica counts as load in the next choices."""
    chooser = ReplicaChooser(brokers("a", "b", "c"), {})
    chosen = [chooser.choose(partition(1), 2) for _ in range(10)]
    added = Counter(each[1] for each in chosen if each is not None)

    assert added == {2: 5, 3: 5}


def test_brokers_that_take_none_are_passed_by() -> None:
    """Cordoned and draining brokers get no replicas, even if no other broker is left."""
    known = [
        LiveBroker(1, "a"),
        LiveBroker(2, "b", cordoned=True),
        LiveBroker(3, "c", state="draining"),
        LiveBroker(4, "a"),
    ]

    assert ReplicaChooser(known, {}).choose(partition(1), 2) == (1, 4)
    assert ReplicaChooser(known, {}).choose(partition(1), 3) is None


def test_the_preferred_leader_stays_first() -> None:
    """Replicas in a rack with another replica are removed first, then those on the most loaded brokers.

    The preferred leader is never removed.
    """
    chooser = ReplicaChooser(brokers("a", "b", "b", "c"), {4: 9})

    assert chooser.choose(partition(1, 2, 3, 4), 3) == (1, 2, 4)
    assert chooser.choose(partition(1, 2, 4), 2) == (1, 2)
    assert chooser.choose(partition(4, 1), 1) == (4,)


def test_replicas_that_cannot_acknowledge_go_first() -> None:
    """Replicas on missing or unknown brokers are removed first, then replicas out of sync, even preferred leaders."""
    gone = [LiveBroker(1, "a", state="gone"), LiveBroker(2, "b"), LiveBroker(3, "c")]

    assert ReplicaChooser(gone, {}).choose(partition(1, 2, 3), 2) == (2, 3)
    assert ReplicaChooser(gone, {}).choose(partition(2, 3, 9), 2) == (2, 3)
    assert ReplicaChooser(gone, {}).choose(partition(2, 3, isr=(3,)), 1) == (3,)


def test_load_is_what_brokers_are_to_keep() -> None:
    """The load of a broker counts its replicas of all topics and replicas being added, but not those being removed."""
    moving = LivePartition(0, (2, 3, 1), adding=(3,), removing=(1,))
    topics = {
        name: LiveTopic(name=name, topic_id=name, partitions=1, replication_factor=2, placement=(each,))
        for name, each in (("a", moving), ("b", partition(1, 2)))
    }

    assert LiveTopics((), topics).load == {1: 1, 2: 2, 3: 1}


def test_a_placement_is_kept_for_the_same_topic_only() -> None:
    """A topic keeps its earlier placement only if its topic id is the same."""
    before = LiveTopic(name="a", topic_id="1", partitions=1, replication_factor=1, placement=(partition(1),))
    same = LiveTopic(name="a", topic_id="1", partitions=1, replication_factor=2)
    other = LiveTopic(name="a", topic_id="2", partitions=1, replication_factor=1)

    assert same.placed_as(before).placement == before.placement
    assert other.placed_as(before).placement == ()
    assert other.placed_as(None) is other
