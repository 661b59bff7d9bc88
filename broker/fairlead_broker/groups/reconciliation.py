"""A member's steps from its assignment to its target, one step per heartbeat (KIP-848).

The reply to a heartbeat asks the member to release the partitions outside its target, and the member keeps its epoch
until it has released them. After the release, the member moves to the target epoch and receives the free partitions of
its target. The member receives the other partitions of its target when their owners have released them. The member
continues to consume the partitions that it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead_broker.groups import rules
from fairlead_broker.groups.assignors import Place
from fairlead_broker.groups.holdings import Holding, common, together, without
from fairlead_broker.groups.messages import Heartbeat
from fairlead_broker.registry.group_records import MemberRecord


def note_release(record: MemberRecord, heartbeat: Heartbeat) -> MemberRecord:
    """Return a member's record without the partitions that its heartbeat releases."""
    if record.revoking and rules.has_released(record.revoking, record, heartbeat):
        return msgspec.structs.replace(record, revoking={})
    return record


def reconcile(
    record: MemberRecord,
    heartbeat: Heartbeat,
    target: Holding,
    target_epoch: int,
    owners: tuple[Mapping[Place, str], Mapping[Place, str]],
) -> MemberRecord:
    """Return the member's record after its next step. `owners` contains the written owners and the grants of this turn.

    The record is unchanged while the member has not released a partition that it must release.
    """
    if record.revoking:
        return record
    kept = common(record.assigned, target)
    given_up = without(record.assigned, target)
    if given_up and not rules.has_released(given_up, record, heartbeat):
        return msgspec.structs.replace(record, assigned=kept, revoking=given_up)
    granted = _free(without(target, kept), heartbeat.member_id, *owners)
    return msgspec.structs.replace(
        record,
        assigned=together(kept, granted),
        epoch=target_epoch,
        previous_epoch=record.previous_epoch if record.epoch == target_epoch else record.epoch,
    )


def _free(
    pending: Holding, member_id: str, written_owners: Mapping[Place, str], granted: Mapping[Place, str]
) -> Holding:
    free = {
        topic_id: tuple(
            partition
            for partition in partitions
            if rules.is_free((topic_id, partition), member_id, written_owners, granted)
        )
        for topic_id, partitions in pending.items()
    }
    return {topic_id: partitions for topic_id, partitions in free.items() if partitions}
