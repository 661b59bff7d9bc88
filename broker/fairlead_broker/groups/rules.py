"""Rules that prevent two members from committing offsets of the same partition, one function for each rule.

The simulator replaces one rule at a time to show that each rule is needed, so callers must use `rules.<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.problems import ProblemError
from fairlead_broker.groups.assignors import Place
from fairlead_broker.groups.holdings import Holding, is_apart, is_within
from fairlead_broker.groups.messages import AWAY_EPOCH, JOIN_EPOCH, Heartbeat
from fairlead_broker.registry.group_records import MemberRecord


def check_principal(group: str, member_id: str, record: MemberRecord, principal: str | None) -> None:
    """Check that a member belongs to a caller (rule Z13).

    `principal`: the caller, or None if access rules are not enforced. Raises `forbidden`.
    """
    if principal is None or record.principal in {None, principal}:
        return
    detail = (
        f"member {member_id} of group {group} does not belong to {principal}; {principal} must join with another "
        "member id and instance id"
    )
    raise ProblemError("forbidden", detail, data={"operation": "read", "resource": f"group:{group}"})


def check_member_epoch(record: MemberRecord, heartbeat: Heartbeat) -> None:
    """Check that a heartbeat has the member's epoch, is a join, or repeats a heartbeat whose reply was lost.

    If a member at the previous epoch owns more than its current assignment, it has missed a revocation. Raises
    `member_fenced`.
    """
    epoch = heartbeat.member_epoch
    if epoch == JOIN_EPOCH or (epoch == record.epoch and epoch != AWAY_EPOCH):
        return
    is_repeated = epoch == record.previous_epoch and epoch > JOIN_EPOCH
    if is_repeated and heartbeat.owned is not None and is_within(heartbeat.owned, record.assigned):
        return
    detail = f"member {heartbeat.member_id} has epoch {record.epoch}, but the heartbeat has epoch {epoch}"
    raise ProblemError("member_fenced", detail, data={"member_id": heartbeat.member_id})


def has_released(partitions: Holding, record: MemberRecord, heartbeat: Heartbeat) -> bool:
    """Return whether a member has released partitions, as shown by the owned partitions in its heartbeat.

    A joining member owns no partition. A heartbeat with an older epoch was sent before the member was asked to
    release the partitions, so the heartbeat does not prove the release.
    """
    if heartbeat.member_epoch == JOIN_EPOCH:
        return True
    if heartbeat.owned is None or heartbeat.member_epoch != record.epoch:
        return False
    return is_apart(heartbeat.owned, partitions)


def is_free(
    place: Place, member_id: str, written_owners: Mapping[Place, str], granted: Mapping[Place, str]
) -> bool:
    """Return whether the partition has no other owner, either in the written records or through a grant of this turn.

    A release in this turn does not make the partition free, because a change may be written in portions, and each
    portion must be valid without the others.
    """
    return written_owners.get(place, member_id) == member_id and granted.get(place, member_id) == member_id


def session_is_over(ends_at: float, now: float) -> bool:
    """Return whether a member's session has ended.

    A member whose session has ended loses its partitions and can no longer commit.
    """
    return ends_at <= now


def revocation_is_overdue(ends_at: float, now: float) -> bool:
    """Return whether a member has not released partitions within its rebalance timeout and must be removed."""
    return ends_at <= now


def may_take_place(holder: MemberRecord, heartbeats_missed: float) -> bool:
    """Return whether a new member may replace a static member with the same instance id.

    The static member must have left or have missed more than two heartbeats, since a crashed member may return before
    its session ends. If the static member is only slow, the write that replaces it also takes its partitions away, and
    it can no longer commit offsets for them.
    """
    return holder.epoch == AWAY_EPOCH or heartbeats_missed > 2


def check_commit_epoch(member_id: str, record: MemberRecord, member_epoch: int) -> None:
    """Check that an offset commit has the member's epoch.

    Raises `stale_member_epoch`, or `member_fenced` for an unknown epoch.
    """
    if member_epoch == record.epoch:
        return
    detail = f"member {member_id} has epoch {record.epoch}, but the commit has epoch {member_epoch}"
    if member_epoch > record.epoch:
        raise ProblemError("member_fenced", detail, data={"member_id": member_id})
    raise ProblemError("stale_member_epoch", detail, data={"member_epoch": record.epoch})


def may_commit_partition(place: Place, member_id: str, written_owners: Mapping[Place, str]) -> bool:
    """Return whether a member owns a partition, including partitions that it must release.

    The epoch alone does not prove ownership: a delayed heartbeat can release a partition that was granted at the
    same epoch after the heartbeat was sent.
    """
    return written_owners.get(place) == member_id
