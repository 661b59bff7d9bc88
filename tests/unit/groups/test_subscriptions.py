"""Subscriptions: names, patterns, and the limits of a group."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from driven_group import BOTH, Driven, wanting
from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import Heartbeat, HeartbeatReply, Leave, Left, Subscription, TopicShape
from fairlead_broker.groups.membership import MEMBERS_MAX
from fairlead_broker.groups.subscriptions import PATTERNS_MAX, SubscribedTopics, _compiled, check_pattern


def shape(name: str, partitions: int = 1) -> dict[str, TopicShape]:
    """Return one topic."""
    return {name: TopicShape(TopicId(name), partitions)}


def test_a_pattern_has_to_match_the_whole_name() -> None:
    """A pattern matches whole names of topics, including topics that are created later."""
    subscribed = SubscribedTopics()
    subscribed.learn(shape("eu.orders") | shape("eu.orders.old") | shape("us"))
    before = subscribed.resolve(("later", "us"), "eu[.]orders")
    subscribed.learn(shape("eu.orders") | shape("later"))

    assert before == {"eu.orders", "us"}
    assert subscribed.resolve(("later", "us"), "eu[.]orders") == {"eu.orders", "later"}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (".*", {"_a", "orders"}),
        ("_.*", {"_a"}),
        ("__?a.*", {"_a"}),
        ("[_]+a.*", {"_a"}),
        ("(__audit)", set()),
        ("__audit|orders", {"orders"}),
        ("__.*", {"__audit", "__later"}),
        ("^__audit$", {"__audit"}),
    ],
)
def test_a_pattern_matches_internal_topics_only_if_it_begins_like_them(pattern: str, found: set[str]) -> None:
    """Topics that begin with `__`, old and new, are matched only by a pattern that begins with `__` (rule Z6)."""
    subscribed = SubscribedTopics()
    before = shape("__audit") | shape("_a") | shape("orders")
    subscribed.learn(before)
    subscribed.resolve((), pattern)
    subscribed.learn(before | shape("__later"))

    assert subscribed.resolve((), pattern) == found


def test_a_member_may_name_an_internal_topic() -> None:
    """A subscription by name includes an internal topic, even beside a pattern that does not match the topic."""
    subscribed = SubscribedTopics()
    subscribed.learn(shape("__audit") | shape("orders"))

    assert subscribed.resolve(("__audit",), ".*") == {"__audit", "orders"}


def test_topics_that_come_and_go_are_matched_again() -> None:
    """Topics are matched again only when they have changed."""
    subscribed = SubscribedTopics()
    topics = shape("aa") | shape("b")
    news = [subscribed.learn(topics), subscribed.learn(topics)]
    first = subscribed.resolve((), "a+")
    subscribed.learn(shape("b") | shape("aaa"))

    assert news == [True, False]
    assert first == {"aa"}
    assert subscribed.resolve((), "a+") == {"aaa"}
    assert subscribed.resolve((), "a+") is subscribed.resolve((), "a+")


def test_what_was_resolved_is_forgotten_in_time() -> None:
    """The caches of matched patterns and resolved subscriptions have a limited size."""
    subscribed = SubscribedTopics()
    subscribed.learn(shape("n7"))
    found = [subscribed.resolve((), f"n{number}|x{number}") for number in range(40)]
    for number in range(2_100):
        subscribed.resolve((f"n{number}",), None)

    assert [number for number, names in enumerate(found) if names] == [7]
    assert len(subscribed._matched) <= 2 * PATTERNS_MAX
    assert len(subscribed._resolved) <= 2_000


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "(?=a)",
        r"(a)\1",
        "a{1,1001}",
        "a" * 1_001,
        "(?:(?:x{100}){10}){10}",
        "\ud800",
        "(?:a?){900}",
        ".*a.{200}",
    ],
)
def test_patterns_that_do_not_compile_or_cost_too_much_are_refused(pattern: str) -> None:
    """Patterns with look-around, back references, or too high cost or length are refused."""
    with pytest.raises(ProblemError) as refused:
        check_pattern(pattern)

    assert refused.value.code == "invalid_pattern"
    assert len(refused.value.detail) < 300


@pytest.mark.parametrize(
    "pattern", ["a" * 1_000, "|".join(f"orders-{number}" for number in range(90)), "(.*)" * 240]
)
def test_patterns_of_names_are_taken_up_to_their_length(pattern: str) -> None:
    """Patterns are accepted up to the length limit, and their capture groups cost nothing."""
    assert check_pattern(pattern) == pattern
    assert _compiled(pattern).groups == 0


def test_a_pattern_of_another_time_goes_on() -> None:
    """A stored pattern that exceeds the current limits keeps working."""
    pattern = "(?:a?){900}"
    driven = Driven(topics=shape("aaa") | shape("b"))
    driven.join("a", wanting("b"))
    members = {"a": msgspec.structs.replace(driven.members["a"], topics=(), topic_pattern=pattern)}
    driven.records = replace(driven.records, members=members)
    driven.loaded()
    driven.now += 1

    assert driven.accepted(Heartbeat("a", 1, owned={})).member_epoch == 2
    assert driven.has("a") == {"aaa": {0}}
    assert driven.refused(Heartbeat("c", 0, Subscription(pattern=pattern))) == "invalid_pattern"


def test_a_refused_subscription_changes_nothing() -> None:
    """A refused subscription changes nothing, whether in a join or in a later heartbeat."""
    driven = Driven(topics=BOTH)
    joins = [
        driven.refused(Heartbeat("a", 0, Subscription(pattern="("))),
        driven.refused(Heartbeat("a", 0, wanting("flights", assignor="sticky"))),
        driven.refused(Heartbeat("a", 0, Subscription(session_timeout_ms=9_000))),
        driven.refused(Heartbeat("a", 0)),
        driven.refused(Heartbeat("a", 0, Subscription(pattern=""))),
    ]
    written = driven.writes
    driven.join("a")
    later = driven.refused(Heartbeat("a", 1, Subscription(pattern="(", rack="r")))

    assert joins == ["invalid_pattern", *["malformed_request"] * 4]
    assert (written, later) == (0, "invalid_pattern")
    assert driven.members["a"].rack is None


def test_a_member_may_consume_nothing() -> None:
    """A member with an empty list of topics consumes nothing, and a member without a list has no subscription."""
    driven = Driven()

    assert driven.join("a", wanting()).assignment == {}


def test_the_subscription_after_a_heartbeat_is_known_in_advance() -> None:
    """Fields of a heartbeat replace the stored fields, and an unknown member has no subscription."""
    driven = Driven(topics=BOTH)
    driven.join("a", wanting("weather", "flights", pattern="w.*"))
    heartbeats = [
        Heartbeat("a", 1),
        Heartbeat("a", 1, Subscription(rack="r")),
        Heartbeat("a", 1, wanting("flights")),
        Heartbeat("a", 1, Subscription(pattern="f.*")),
        Heartbeat("a", 1, wanting(pattern="")),
        Heartbeat("b", 1, wanting("flights")),
    ]

    stored = ("flights", "weather")
    assert [driven.group.consumed(each.member_id, each.subscription) for each in heartbeats] == [
        (stored, "w.*"), (stored, "w.*"), (("flights",), "w.*"), (stored, "f.*"), ((), None), None,
    ]  # fmt: skip
    assert driven.members["a"].topics == stored


def test_a_group_has_at_most_a_thousand_members() -> None:
    """A group has at most a thousand members.

    Members of a full group stay, and a static member counts only once.
    """
    driven = Driven()
    driven.turn(
        *(
            Heartbeat(f"m{n}", 0, wanting("flights", instance_id=f"i{n}" if n == 5 else None))
            for n in range(MEMBERS_MAX)
        )
    )

    assert driven.refused(Heartbeat("more", 0, wanting("flights"))) == "group_too_large"
    assert driven.accepted(Heartbeat("m7", 0)).member_epoch == 1
    driven.now += 11
    assert driven.accepted(Heartbeat("again", 0, wanting("flights", instance_id="i5"))).member_epoch == 1


def test_a_group_consumes_at_most_ten_thousand_partitions() -> None:
    """A subscription is refused if its group would have more than ten thousand distinct partitions.

    Partitions that are added to a subscribed topic later are assigned even beyond the group's limit.
    """
    driven = Driven(topics=shape("a", 6_000) | shape("b", 4_000) | shape("c", 1))
    driven.join("x", wanting("a"))
    driven.join("y", wanting("a", "b"))
    codes = [
        driven.refused(Heartbeat("z", 0, wanting("c"))),
        driven.refused(Heartbeat("x", 1, wanting("a", "c"))),
    ]
    driven.topics = shape("a", 6_000) | shape("b", 4_001) | shape("c", 1)
    driven.settle("x", "y")

    assert codes == ["group_too_large", "group_too_large"]
    assert driven.join("z", wanting("b")).member_epoch > 1
    assert sum(len(each) for member_id in "xy" for each in driven.has(member_id).values()) == 10_001


def test_topics_of_replaced_subscriptions_do_not_count() -> None:
    """Topics of replaced subscriptions and removed members do not count towards the limit, even for static members."""
    driven = Driven(topics=shape("a", 6_000) | shape("b", 6_000) | shape("c", 6_000))
    driven.join("x", wanting("a", instance_id="i"))
    taken = driven.accepted(Heartbeat("x", 1, wanting("b")))
    driven.join("y", wanting("b"))
    shared = driven.refused(Heartbeat("y", driven.clients["y"].epoch, wanting("c")))
    driven.turn(Leave("y"))
    driven.turn(Leave("x", static=True))
    replaced = driven.accepted(Heartbeat("z", 0, wanting("c", instance_id="i")))
    place = driven.members["z"].topics
    gone, came = driven.turn(Leave("z"), Heartbeat("y", 0, wanting("a")))

    assert (taken.member_epoch, replaced.member_epoch) == (1, 1)
    assert (shared, place) == ("group_too_large", ("c",))
    assert (isinstance(gone, Left), isinstance(came, HeartbeatReply)) == (True, True)


def test_a_leave_makes_room_within_the_turn() -> None:
    """A member that leaves in a turn does not count towards the group's limits for later events of the turn."""
    driven = Driven(topics=shape("a", 6_000) | shape("b", 4_000) | shape("c", 4_000))
    driven.join("x", wanting("a"))
    driven.join("y", wanting("b"))
    replies = driven.turn(
        Heartbeat("z", 0, wanting("c")),
        Leave("y"),
        Heartbeat("z", 0, wanting("c")),
        Heartbeat("w", 0, wanting("b")),
    )

    codes = [reply.code if isinstance(reply, ProblemError) else None for reply in replies]
    assert codes == ["group_too_large", None, None, "group_too_large"]


def test_a_group_uses_at_most_sixteen_patterns() -> None:
    """A group uses at most sixteen different patterns."""
    driven = Driven()
    for number in range(PATTERNS_MAX):
        driven.join(f"m{number}", Subscription(pattern=f"f{number}"))
    refusal = driven.refused(Heartbeat("more", 0, Subscription(pattern="other")))

    assert refusal == "group_too_large"
    assert driven.join("more", Subscription(pattern="f3")).member_epoch == 1
    assert driven.accepted(Heartbeat("m4", 1, wanting("flights"))).member_epoch == 1


def test_a_replaced_pattern_does_not_count() -> None:
    """A replaced pattern does not count towards the group's limit of patterns, unless another member uses it."""
    driven = Driven()
    for number in range(PATTERNS_MAX):
        driven.join(f"m{number}", Subscription(pattern=f"f{number}"))
    driven.join("m", Subscription(pattern="f3"))

    assert driven.refused(Heartbeat("m3", 1, Subscription(pattern="another"))) == "group_too_large"
    assert driven.accepted(Heartbeat("m5", 1, Subscription(pattern="other"))).member_epoch == 1
