"""A member's steps from its assignment to its target, one heartbeat at a time (KIP-848).

The answer asks the member to release partitions outside its target; the member keeps its epoch until it has done so.
Then it moves to the target epoch and receives the target partitions that are free; the others follow as their owners
release them. Partitions that it owns and keeps never pause.
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
    """Remove released partitions from a member's record, if its heartbeat releases them."""
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
    """Return a member's next step; `owners` are the written owners and the grants of this turn.

    A member has no next step while it holds a partition that it must release.
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
