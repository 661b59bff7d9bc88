"""Assignments are balanced, complete and sticky, and prefer replicas in the member's rack if the balance allows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups.assignors import Candidate, Candidates, Shapes, Target, assign, check_assignor
from fairlead_broker.groups.subscriptions import TopicShape
from refusals import refuses

A, B, C = TopicId("a"), TopicId("b"), TopicId("c")


def shapes(**partitions: int) -> dict[TopicId, TopicShape]:
    """Return topics by id, with unknown racks."""
    return {TopicId(name): TopicShape(TopicId(name), count) for name, count in partitions.items()}


def consumers(names: str, topics: Shapes) -> dict[str, Candidate]:
    """Return members that consume all topics, each named by one letter."""
    return {name: Candidate(frozenset(topics)) for name in names}


def counts(target: Target, members: Candidates) -> dict[str, int]:
    """Return the number of partitions of every member."""
    counted = Counter(dict.fromkeys(members, 0))
    for by_member in target.values():
        for member_id, partitions in by_member.items():
            counted[member_id] += len(partitions)
    return dict(counted)


def owners(target: Target) -> dict[tuple[TopicId, int], str]:
    """Return the member of every partition, and fail if a partition has two members."""
    found: dict[tuple[TopicId, int], str] = {}
    for topic_id, by_member in target.items():
        for member_id, partitions in by_member.items():
            for partition in partitions:
                assert (topic_id, partition) not in found
                found[topic_id, partition] = member_id
    return found


def everything(topics: Shapes) -> set[tuple[TopicId, int]]:
    """Return all partitions."""
    return {(topic_id, number) for topic_id, shape in topics.items() for number in range(shape.partitions)}


TOPICS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 12), min_size=1).map(
    lambda partitions: shapes(**partitions)
)
NAMES = st.text("klmnopqrst", min_size=1, max_size=10).map(lambda text: "".join(sorted(set(text))))


@given(topics=TOPICS, names=NAMES, later=NAMES)
def test_uniform_is_complete_balanced_and_moves_the_least(topics: Shapes, names: str, later: str) -> None:
    """After any change, the uniform assignment is complete and balanced, and moves as few partitions as possible."""
    before = assign("uniform", consumers(names, topics), topics, {})
    members = consumers(later, topics)
    after = assign("uniform", members, topics, before)

    assert owners(after).keys() == everything(topics)
    held = counts(after, members)
    assert max(held.values()) - min(held.values()) <= 1
    had = Counter(owners(before).values())
    low, extra = divmod(len(everything(topics)), len(members))
    fullest = sorted((had[name] for name in members), reverse=True)
    keepable = sum(min(count, low + (place < extra)) for place, count in enumerate(fullest))
    kept = sum(owners(before)[place] == owner for place, owner in owners(after).items())
    assert kept == keepable


@given(topics=TOPICS, names=NAMES, later=NAMES)
def test_range_is_complete_balanced_in_each_topic_and_puts_equal_numbers_together(
    topics: Shapes, names: str, later: str
) -> None:
    """After any change, the range assignment is complete, balanced per topic, and equal for topics of equal size."""
    before = assign("range", consumers(names, topics), topics, {})
    members = consumers(later, topics)
    after = assign("range", members, topics, before)

    assert owners(after).keys() == everything(topics)
    for by_member in after.values():
        held = [len(by_member.get(name, ())) for name in members]
        assert max(held) - min(held) <= 1
    for topic_id, shape in topics.items():
        for other_id, other in topics.items():
            if shape.partitions == other.partitions:
                assert after[topic_id] == after[other_id]


@given(
    topics=TOPICS,
    wanted=st.dictionaries(st.sampled_from("klmnopqrst"), st.frozensets(st.sampled_from("abcd")), min_size=1),
    later=st.dictionaries(st.sampled_from("klmnopqrst"), st.frozensets(st.sampled_from("abcd")), min_size=1),
    assignor=st.sampled_from(["uniform", "range"]),
)
def test_members_that_consume_different_topics_get_only_those_and_no_move_would_level_them(
    topics: Shapes,
    wanted: Mapping[str, frozenset[str]],
    later: Mapping[str, frozenset[str]],
    assignor: str,
) -> None:
    """Members get only partitions of their topics, and no move would make a uniform assignment more even."""
    target: Target = {}
    members: Candidates = {}
    for subscriptions in (wanted, later):
        members = {
            name: Candidate(frozenset(map(TopicId, each)) & topics.keys())
            for name, each in subscriptions.items()
        }
        target = assign(assignor, members, topics, target)

    consumed = {topic_id for each in members.values() for topic_id in each.topics}
    assert owners(target).keys() == {place for place in everything(topics) if place[0] in consumed}
    held = counts(target, members)
    for (topic_id, _), owner in owners(target).items():
        assert topic_id in members[owner].topics
        if assignor == "uniform":
            lightest = min(held[name] for name, each in members.items() if topic_id in each.topics)
            assert held[owner] - lightest <= 1


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_nothing_moves_when_nothing_changed(assignor: str) -> None:
    """While members and topics stay the same, so does the assignment."""
    topics = shapes(a=7, b=7, c=4)
    members = consumers("klm", topics) | {"z": Candidate(frozenset({C}))}
    target = assign(assignor, members, topics, {})

    assert assign(assignor, members, topics, target) == target


def test_range_gives_rows_of_partitions() -> None:
    """The range assignor assigns consecutive partitions, and assigns the remainder to the first members."""
    topics = shapes(a=7)

    assert assign("range", consumers("klm", topics), topics, {}) == {
        A: {"k": (0, 1, 2), "l": (3, 4), "m": (5, 6)}
    }


def test_range_shares_what_a_member_leaves_in_rows() -> None:
    """Remaining members keep their partitions and get consecutive partitions of the member that left."""
    topics = shapes(a=6)
    before = assign("range", consumers("klm", topics), topics, {})

    assert assign("range", consumers("km", topics), topics, before) == {A: {"k": (0, 1, 2), "m": (3, 4, 5)}}


def test_range_orders_static_members_by_their_instance_before_the_others() -> None:
    """Static members are ordered first, by instance id, so that a restarted member gets the same partitions."""
    topics = shapes(a=3)
    members = {
        "k": Candidate(frozenset({A})),
        "l": Candidate(frozenset({A}), instance_id="y"),
        "m": Candidate(frozenset({A}), instance_id="x"),
    }

    assert assign("range", members, topics, {}) == {A: {"m": (0,), "l": (1,), "k": (2,)}}


def test_uniform_spreads_each_topic() -> None:
    """The uniform assignor spreads each topic over all members, at the start and when members join."""
    topics = shapes(a=4, b=4)
    before = assign("uniform", consumers("kl", topics), topics, {})
    after = assign("uniform", consumers("klmn", topics), topics, before)

    assert {topic_id: counts({topic_id: before[topic_id]}, {}) for topic_id in (A, B)} == {
        A: {"k": 2, "l": 2},
        B: {"k": 2, "l": 2},
    }
    assert all(set(counts({topic_id: after[topic_id]}, {}).values()) == {1} for topic_id in (A, B))


def test_the_last_partition_of_a_topic_may_go_too() -> None:
    """The only partition of a topic moves to a member with fewer partitions."""
    topics = shapes(a=1, b=2)
    members = {"k": Candidate(frozenset({A, B})), "l": Candidate(frozenset({A}))}

    assert assign("uniform", members, topics, {A: {"k": (0,)}, B: {"k": (0, 1)}}) == {
        A: {"l": (0,)},
        B: {"k": (0, 1)},
    }


def racked(racks: Sequence[str]) -> dict[TopicId, TopicShape]:
    """Return a topic whose partitions have replicas in the given racks, each named by letters."""
    return {A: TopicShape(A, len(racks), tuple(map(frozenset, racks)))}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_partitions_go_to_members_in_a_rack_of_theirs(assignor: str) -> None:
    """A partition is assigned to a member in a rack of its replicas if equal shares allow it."""
    topics = racked(["x", "y", "y", "x", "z", "z"])
    members = {
        "k": Candidate(frozenset({A}), rack="y"),
        "l": Candidate(frozenset({A}), rack="x"),
        "m": Candidate(frozenset({A})),
    }

    assert assign(assignor, members, topics, {}) == {A: {"k": (1, 2), "l": (0, 3), "m": (4, 5)}}


def test_near_ones_come_first_among_equals_where_members_consume_different_topics() -> None:
    """If members have different topics, balance takes precedence over racks.

    A rack without members has no effect on assignments.
    """
    topics = racked(["y", "zx", "x", "y"]) | shapes(b=1)
    members = {
        "k": Candidate(frozenset({A})),
        "l": Candidate(frozenset({A}), rack="y"),
        "m": Candidate(frozenset({A, B}), rack="x"),
    }

    assert assign("uniform", members, topics, {}) == {A: {"k": (1,), "l": (0, 3), "m": (2,)}, B: {"m": (0,)}}


def test_a_member_with_too_many_gives_up_the_far_ones() -> None:
    """A member with too many partitions releases those without a replica in its rack first, and no more than needed."""
    topics = racked(["x", "y", "x", "y"])
    before = {A: {"k": (0, 1, 2, 3)}}
    members = {"k": Candidate(frozenset({A}), rack="y"), "l": Candidate(frozenset({A}), rack="x")}

    assert assign("uniform", members, topics, before) == {A: {"k": (1, 3), "l": (0, 2)}}
    assert assign("uniform", {"k": members["k"]}, topics, before) == before


def test_racks_of_alike_topics_count_where_all_have_a_replica() -> None:
    """The range assignor assigns the same partition of two topics to one member, in a rack with replicas of both."""
    topics = {
        A: TopicShape(A, 2, (frozenset("xy"), frozenset("xy"))),
        B: TopicShape(B, 2, (frozenset("y"), frozenset("x"))),
    }
    members = {
        "k": Candidate(frozenset({A, B}), rack="x"),
        "l": Candidate(frozenset({A, B}), rack="y"),
    }

    assert assign("range", members, topics, {}) == {topic_id: {"k": (1,), "l": (0,)} for topic_id in (A, B)}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_no_members_and_no_topics_make_an_empty_target(assignor: str) -> None:
    """No partition is assigned in an empty group, or to members without topics."""
    topics = shapes(a=3)

    assert assign(assignor, {}, topics, {}) == {}
    assert assign(assignor, {"k": Candidate(frozenset())}, topics, {A: {"k": (0,)}}) == {}


def test_an_assignor_that_does_not_exist_is_refused() -> None:
    """An unknown assignor is refused, and the refusal names the known assignors."""
    with refuses("malformed_request", "range", "uniform"):
        check_assignor("cooperative-sticky")
