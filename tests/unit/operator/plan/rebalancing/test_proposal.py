"""Proposals: the moves that reach the goal of a Rebalance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.rebalancing.layout import Place
from fairlead_operator.plan.rebalancing.proposal import Goal, Proposal, propose
from fairlead_operator.plan.topic_observed import LiveBroker, LivePartition, LiveTopic, LiveTopics


def topics(
    brokers: Sequence[LiveBroker], placed: Mapping[str, Sequence[LivePartition]], state: str = "ready"
) -> LiveTopics:
    """Return the topics of a cluster."""
    return LiveTopics(
        tuple(brokers),
        {
            name: LiveTopic(
                name=name,
                topic_id=name,
                state=state,  # type: ignore[arg-type]
                partitions=len(partitions),
                replication_factor=len(partitions[0].target),
                placement=tuple(partitions),
            )
            for name, partitions in placed.items()
        },
    )


def at(*places: tuple[int, ...]) -> list[LivePartition]:
    """Return partitions on the given brokers."""
    return [LivePartition(index, replicas, isr=replicas) for index, replicas in enumerate(places)]


def brokers(count: int, racks: Sequence[str] = ()) -> list[LiveBroker]:
    """Return running brokers with ids from 1."""
    return [LiveBroker(number, racks[number - 1] if racks else None) for number in range(1, count + 1)]


def proposed(goal: Goal, live: LiveTopics, moves_max: int = 100) -> Proposal:
    """Return a proposal, which must exist."""
    found = propose(goal, live, moves_max)
    assert isinstance(found, Proposal), found
    return found


def loads_after(proposal: Proposal) -> dict[int, tuple[int, int]]:
    """Return the number of replicas and of preferred leaders of each broker after the moves."""
    return {each.broker: (each.replicas_after, each.leaders_after) for each in proposal.loads}


@st.composite
def clusters(draw: st.DrawFn) -> LiveTopics:
    """Return clusters of up to six brokers in up to three racks, some of them cordoned or down."""
    count = draw(st.integers(1, 6))
    states = draw(
        st.lists(st.sampled_from(["running", "running", "draining"]), min_size=count, max_size=count)
    )
    racks = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=count, max_size=count))
    found = [
        LiveBroker(number, racks[number - 1], state=states[number - 1], cordoned=draw(st.booleans()))
        for number in range(1, count + 1)
    ]
    replicas = st.permutations(range(1, count + 1)).flatmap(
        lambda order: st.integers(1, count).map(lambda factor: tuple(order[:factor]))
    )
    names = draw(st.lists(st.sampled_from(["t", "u", "v"]), unique=True, max_size=3))
    return topics(found, {name: at(*draw(st.lists(replicas, min_size=1, max_size=6))) for name in names})


def racks_used(live: LiveTopics, replicas: tuple[int, ...]) -> int:
    """Return the number of racks with a replica."""
    racks = {each.id: each.rack for each in live.brokers}
    return len({racks[broker] for broker in replicas})


@given(clusters())
def test_a_full_rebalance_evens_loads_and_harms_no_partition(live: LiveTopics) -> None:
    """A full proposal keeps all replicas and racks, makes no load less even, and a second proposal has no moves."""
    proposal = proposed(Goal("Full"), live)
    open_brokers = {each.id for each in live.placeable}
    for move in proposal.moves:
        assert len(set(move.replicas)) == len(move.previous)
        assert move.added <= open_brokers
        assert racks_used(live, move.replicas) >= racks_used(live, move.previous)
    before = [each.replicas for each in proposal.loads]
    after = [each.replicas_after for each in proposal.loads]
    assert sum(after) == sum(before)
    assert sum(each * each for each in after) <= sum(each * each for each in before)
    moved = {move.place: move.replicas for move in proposal.moves}
    done = topics(
        live.brokers,
        {
            name: at(*(moved.get(Place(name, each.index), each.replicas) for each in topic.placement))
            for name, topic in live.topics.items()
        },
    )
    assert proposed(Goal("Full"), done).moves == ()


def test_new_brokers_get_their_share_and_others_exchange_nothing() -> None:
    """Added brokers get their share of replicas and leaders, and no replica moves between other brokers."""
    live = topics(
        brokers(4), {"t": at((1, 2), (2, 3), (3, 1), (1, 2)), "u": at((1, 3), (1, 3), (1, 2), (1, 2))}
    )
    proposal = proposed(Goal("AddBrokers", (4,)), live)

    assert loads_after(proposal)[4] == (4, 3)
    assert all(move.added == {4} for move in proposal.moves)
    assert Counter(move.place.topic for move in proposal.moves) == {"t": 2, "u": 2}
    assert proposal.complete


def test_leaders_are_evened_without_a_copy() -> None:
    """If loads are even, a proposal changes only the order of replicas."""
    live = topics(brokers(2), {"t": at((1, 2), (1, 2), (1, 2), (1, 2))})
    proposal = proposed(Goal("Full"), live)

    assert [move.added for move in proposal.moves] == [frozenset()] * 2
    assert loads_after(proposal) == {1: (4, 2), 2: (4, 2)}


def test_leaders_stay_where_no_replica_shares_them() -> None:
    """A preferred leader stays if the broker with fewer leaders has no replica of the partition."""
    live = topics(
        [*brokers(2, ("a", "b")), LiveBroker(3, "a", cordoned=True)], {"t": at((1,), (1,)), "u": at((2, 1))}
    )

    assert proposed(Goal("AddBrokers", (2,)), topics(live.brokers, {"u": at((2, 1))})).moves == ()
    assert [move.replicas for move in proposed(Goal("Full"), live).moves] == [(2,)]


def test_leaders_move_between_brokers_that_share_a_partition() -> None:
    """A broker without leaders gets one from a broker that shares a partition with it, not from the first broker."""
    proposal = proposed(Goal("Full"), topics(brokers(4), {"t": at((1, 3), (1, 3), (4, 2), (4, 2))}))

    assert loads_after(proposal) == dict.fromkeys(range(1, 5), (2, 1))


def test_removed_brokers_are_emptied_by_rack_and_load() -> None:
    """Each replica of a removed broker moves to an unused rack first, and then to the broker with the least load."""
    live = topics(brokers(4, ("a", "b", "c", "c")), {"t": at((1, 2), (1, 3), (2, 3)), "u": at((3, 4))})
    proposal = proposed(Goal("RemoveBrokers", (1,)), live)

    assert [(str(move.place), move.replicas) for move in proposal.moves] == [("t-0", (4, 2)), ("t-1", (2, 3))]
    assert loads_after(proposal)[1] == (0, 0)
    assert propose(Goal("RemoveBrokers", (9,)), live) == proposed(Goal("RemoveBrokers", (9,)), live)
    assert proposed(Goal("RemoveBrokers", (9,)), live).moves == ()


def test_partitions_without_another_broker_are_named() -> None:
    """If no other broker can take the replicas of a removed broker, the refusal names at most ten partitions."""
    live = topics(brokers(2), {"t": at(*[(1, 2)] * 12), "u": at((1,))})

    found = propose(Goal("RemoveBrokers", (1,)), live)
    assert isinstance(found, Finding)
    assert found.reason == "NoBrokerLeft"
    assert "t-9 and 2 more" in found.message
    few = propose(Goal("RemoveBrokers", (1,)), topics(brokers(2), {"t": at((1, 2))}))
    assert isinstance(few, Finding)
    assert few.message.endswith("t-0")


def test_closed_brokers_get_nothing() -> None:
    """The refusal of a Rebalance names an added broker that is unknown, cordoned or draining."""
    for closed in (LiveBroker(2, cordoned=True), LiveBroker(2, state="draining"), LiveBroker(3)):
        found = propose(Goal("AddBrokers", (2,)), topics([LiveBroker(1), closed], {"t": at((1,), (1,))}))
        assert isinstance(found, Finding)
        assert found.reason == "BrokersNotFound"


def test_moving_partitions_and_topics_being_made_are_left_alone() -> None:
    """A partition that is being moved counts towards the load of its target brokers.

    Topics that are being created or deleted do not count towards the load of a broker.
    """
    moving = LivePartition(1, (2, 1), adding=(2,), removing=(1,), isr=(1,))
    live = topics(
        brokers(2), {"t": [LivePartition(0, (1,), isr=(1,)), moving, LivePartition(2, (1,), isr=(1,))]}
    )
    proposal = proposed(Goal("Full"), live)

    assert loads_after(proposal) == {1: (2, 2), 2: (1, 1)}
    assert proposal.moves == ()
    assert proposed(Goal("Full"), topics(brokers(2), {"t": at((1,), (1,))}, "deleting")).moves == ()


def test_a_long_proposal_is_cut_and_continued() -> None:
    """A proposal has at most the allowed number of moves, and says that another proposal follows."""
    live = topics(brokers(2), {"t": at(*[(1,)] * 10)})
    cut = proposed(Goal("Full"), live, moves_max=2)
    leaders = proposed(Goal("Full"), topics(brokers(2), {"t": at(*[(1, 2)] * 10)}), moves_max=2)
    removal = proposed(Goal("RemoveBrokers", (1,)), live, moves_max=2)

    for each in (cut, leaders, removal):
        assert len(each.moves) == 2
        assert not each.complete
    assert proposed(Goal("Full"), live, moves_max=5).complete


def test_loads_stay_uneven_where_no_replica_may_move() -> None:
    """A broker with more replicas keeps them if the other broker has a replica of each partition that may move."""
    fixed = [LivePartition(index, (1, 3), adding=(1,), removing=(3,), isr=(3,)) for index in range(2)]
    live = topics(brokers(2), {"t": at((2, 1), (2, 1)), "u": fixed})

    assert proposed(Goal("Full"), live).moves == ()
