"""Keys of groups are parsed as they were built, and are ordered so that a list can skip groups."""

from __future__ import annotations

import itertools

import pytest

from fairlead_api.identifiers import TopicId
from fairlead_broker.registry.keys import (
    FoundClassic,
    FoundClassicMember,
    FoundCoordinator,
    FoundGroupKey,
    FoundMember,
    FoundOffsets,
    FoundState,
    FoundTarget,
    GroupKeys,
    Keys,
    after_group,
    all_groups,
    group_of,
)

CLUSTER = Keys("prod")
KEYS = GroupKeys(CLUSTER, "etl")
ID = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
BUILT: list[tuple[str, FoundGroupKey]] = [
    (KEYS.coordinator, FoundCoordinator()),
    (KEYS.state, FoundState()),
    (KEYS.target(ID), FoundTarget(ID)),
    (KEYS.member("m-1"), FoundMember("m-1")),
    (KEYS.member("a/b"), FoundMember("a/b")),
    (KEYS.offsets_of(ID, 63), FoundOffsets(ID, 0)),
    (KEYS.offsets_of(ID, 64), FoundOffsets(ID, 1)),
    (KEYS.offsets_block(ID, 7), FoundOffsets(ID, 7)),
    (KEYS.classic, FoundClassic()),
    (KEYS.classic_member("a/b"), FoundClassicMember("a/b")),
]


@pytest.mark.parametrize(("built", "parsed"), BUILT)
def test_a_key_that_was_built_is_parsed(built: str, parsed: FoundGroupKey) -> None:
    """A built key is parsed to its type and its group.

    The text of each key is tested in tests/contract.
    """
    assert KEYS.parse(built) == parsed
    assert group_of(CLUSTER, built) == "etl"


@pytest.mark.parametrize(
    "rest",
    ["", "later", "targets/", "members/", "members/a/b", f"offsets/{ID}", f"offsets/{ID}/x", "offsets//1"],
)
def test_keys_of_a_later_release_are_nothing_known(rest: str) -> None:
    """Keys of a later release parse to no known key."""
    assert KEYS.parse(KEYS.prefix + rest) is None


def test_keys_of_another_group_are_not_read() -> None:
    """The list of a group's keys omits keys of other groups whose names begin with the group's name."""
    assert KEYS.parse(GroupKeys(CLUSTER, "etl-2").state) is None


@pytest.mark.parametrize("key", [CLUSTER.cluster, all_groups(CLUSTER), all_groups(CLUSTER) + "etl"])
def test_what_is_no_key_of_a_group_has_no_group(key: str) -> None:
    """A key outside a group's prefix belongs to no group."""
    assert group_of(CLUSTER, key) is None


def test_a_list_skips_from_group_to_group() -> None:
    """A list that skips a group continues after all keys of that group, and before every key of the next group."""
    names = ["a", "a.b", "a-b", "ab", "a0", "A", "_"]
    ordered = sorted(names, key=lambda name: GroupKeys(CLUSTER, name).prefix)
    for before, following in itertools.pairwise(ordered):
        skip = after_group(CLUSTER, before)

        assert GroupKeys(CLUSTER, before).target(ID) < skip < GroupKeys(CLUSTER, following).coordinator


def test_prefixes_hold_their_keys() -> None:
    """A prefix selects exactly the keys of its group."""
    assert KEYS.prefix == all_groups(CLUSTER) + "etl/"
    assert KEYS.target(ID).startswith(KEYS.targets)
    assert KEYS.member("m").startswith(KEYS.members)
    assert KEYS.offsets_of(ID, 1).startswith(KEYS.offsets)
