"""Names and ids that clients choose."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import (
    Acks,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    check_group_name,
    check_topic_id,
    check_topic_name,
    collides,
)
from fairlead_api.problems import ProblemError
from refusals import missing, refuses

GOOD_NAMES = ["a", "flights", "A.b_c-9", "...", "_", "-", "x" * 249]
NASTY_NAMES = [
    "", ".", "..", "x" * 250, "a b", "a/b", "a\\b", "../a", "a\n", "a\x00", "a%2Fb", "ünïcode", "a?b", "a#b", "a:b",
    "\u202eabc", "\uff41", "\u0435", "a,b", "*", " ", "a\u200b",
]  # fmt: skip
TOPIC_ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_an_allowed_name_is_returned(name: str) -> None:
    """An allowed name of a topic or group is returned unchanged."""
    assert check_topic_name(name) == name
    assert check_group_name(name) == name


@pytest.mark.parametrize("name", NASTY_NAMES)
def test_a_nasty_name_of_a_topic_is_refused_with_the_rule(name: str) -> None:
    """A forbidden name is refused with the code for its kind; the detail contains the rule and the name in ASCII."""
    with pytest.raises(ProblemError) as refused:
        check_topic_name(name)

    assert refused.value.code == "invalid_topic_name"
    assert missing(refused.value.detail, 1, 249) == []
    assert refused.value.detail.isascii()
    assert refused.value.detail.isprintable()


@pytest.mark.parametrize(
    "name", ["a b", "a/b", "a+b==", "a:b", "consumer-1-6ba7b810/x", "ünïcode", "?#%", "é" * 41]
)
def test_groups_and_members_have_the_names_of_kafkas_clients(name: str) -> None:
    """Names of groups and members are free text, as Kafka's clients choose them."""
    assert check_group_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "é" * 42, "a\n", "a\x00", "\u202eabc", "a\u200b", "\ud800", "a\u00a0b"]
)
def test_a_name_of_a_group_that_cannot_be_shown_or_stored_is_refused(name: str) -> None:
    """Characters that cannot be shown, segments that URLs resolve, and names too long for a key are refused."""
    with pytest.raises(ProblemError) as refused:
        check_group_name(name)

    assert refused.value.code == "invalid_group_name"
    assert missing(refused.value.detail, 1, 249) == []
    assert refused.value.detail.isascii()
    assert refused.value.detail.isprintable()


def test_a_long_name_does_not_bloat_the_problem() -> None:
    """A name of one megabyte is truncated in the problem's detail and data."""
    with pytest.raises(ProblemError) as refused:
        check_topic_name("x" * 1_000_000)

    assert len(str(refused.value.to_document())) < 1000


def test_a_topic_id_is_a_lower_case_version_4_uuid() -> None:
    """A topic id is a lower-case version 4 UUID, and is returned in canonical form."""
    assert check_topic_id(TOPIC_ID) == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        TOPIC_ID.upper(),
        TOPIC_ID.replace("-", ""),
        TOPIC_ID.replace("-41d1-", "-11d1-"),
        TOPIC_ID.replace("-80b4-", "-c0b4-"),
        f"{{{TOPIC_ID}}}",
        f"{TOPIC_ID}\n",
        "../../etc/passwd",
    ],
)
def test_any_other_topic_id_is_refused(text: str) -> None:
    """A topic id of a different version, variant or spelling is malformed."""
    with refuses("malformed_request", 4) as refused:
        check_topic_id(text)

    assert refused.value.data["parameter"] == "topic_id"


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [("a.b", "a_b", True), ("a.b", "a.b", False), ("a.b", "a-b", False), ("a._", "a_.", True)],
)
def test_names_collide_when_only_dots_and_underscores_differ(name: str, other: str, expected: bool) -> None:
    """Two topic names collide if they differ only in dots and underscores; a name does not collide with itself."""
    assert collides(name, other) is expected


def test_partitions_sort_and_read_as_the_path_of_their_folder() -> None:
    """Partitions are sorted by topic id and numeric index, and are written as topic id/index."""
    partitions = [TopicIdPartition(TopicId(TOPIC_ID), PartitionIndex(index)) for index in (10, 9)]

    assert [str(partition) for partition in sorted(partitions)] == [f"{TOPIC_ID}/9", f"{TOPIC_ID}/10"]


def test_acks_have_the_values_of_the_query_parameter() -> None:
    """The three levels of acks are 0, 1 and all, as in the query parameter."""
    assert [Acks(value) for value in ("0", "1", "all")] == [Acks.NONE, Acks.LEADER, Acks.ALL]
