"""The violations that the watch over groups detects."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.bodies.group_answers import AssignedPartitions, GroupDescription, MemberDescription
from group_watch import assert_consumed_by, is_settled, owned_twice, places_of


def _member(name: str, partitions: list[int], revoking: list[int]) -> MemberDescription:
    def of_topic(each: list[int]) -> list[AssignedPartitions]:
        return [AssignedPartitions(topic="t", topic_id="id", partitions=each)]

    return MemberDescription(
        member_id=name,
        instance_id=None,
        member_epoch=1,
        topics=["t"],
        assignment=of_topic(partitions),
        revoking=of_topic(revoking),
    )


def _group(*members: MemberDescription) -> GroupDescription:
    return GroupDescription(
        group="g", state="stable", epoch=1, assignor="uniform", coordinator=1, members=list(members)
    )


def test_a_partition_not_given_up_yet_is_owned() -> None:
    """A partition with two owners is detected, even while one owner has not revoked it yet."""
    assert owned_twice(_group(_member("a", [0], [1]), _member("b", [1], []))) == [("t", 1)]
    assert owned_twice(_group(_member("a", [0], [2]), _member("b", [1], []))) == []


def test_a_group_is_settled_when_everything_has_an_owner() -> None:
    """A group with an unowned partition, or with an unexpected number of members, is not settled."""
    group = _group(_member("a", [0], []), _member("b", [1], []))

    assert is_settled(2, places_of("t", 2))(group)
    assert not is_settled(2, places_of("t", 3))(group)
    assert not is_settled(3, places_of("t", 2))(group)


def _poll(process: int, *offsets: int, **more: Any) -> dict[str, Any]:
    records = [[offset, str(offset)] for offset in offsets]
    return {"op": "poll", "type": "ok", "process": process, "key": "t-0", "records": records, **more}


def _assign(process: int) -> dict[str, Any]:
    return {"op": "assign", "type": "ok", "process": process, "keys": {"t-0": 0}}


END = _poll(9, 0, 1, 2, final=True)


def test_a_record_that_no_member_was_given_is_lost() -> None:
    """A record that no member received is lost, even if a reader without a group received it."""
    events = [_assign(1), _poll(1, 0, 1, group="g"), _poll(2, 2, group="another"), END]

    with pytest.raises(AssertionError):
        assert_consumed_by(events, "g")


def test_a_record_comes_twice_only_where_its_partition_moved() -> None:
    """A record may be delivered again to the next owner, or to the same owner after another assignment."""
    before = [_assign(1), _assign(2), _poll(1, 0, 1, group="g")]

    assert assert_consumed_by([*before, _assign(1), _poll(1, 1, 2, group="g"), END], "g") == 1
    assert assert_consumed_by([*before, _assign(3), _poll(3, 1, 2, group="g"), END], "g") == 1
    for process in (1, 2):
        with pytest.raises(AssertionError):
            assert_consumed_by([*before, _poll(process, 1, 2, group="g"), END], "g")


def test_a_member_that_was_cut_off_reads_on() -> None:
    """A member may read from a partition that has moved to another owner only if the run may cut members off."""
    taken = [_assign(1), _poll(1, 0, group="g"), _assign(2), _poll(2, 1, group="g")]
    late = [*taken, _poll(1, 1, 2, group="g"), END]
    never = [*taken, _poll(3, 1, 2, group="g"), END]

    assert assert_consumed_by(late, "g", unheard=True) == 1
    with pytest.raises(AssertionError):
        assert_consumed_by(late, "g")
    with pytest.raises(AssertionError):
        assert_consumed_by(never, "g", unheard=True)
