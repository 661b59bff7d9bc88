"""Which members are known to know what they are assigned.

An answer can be lost, or go to an attempt that its sender has given up, and a grant can have been in it. So the
assignment is told in every answer until the member has said that it owns exactly that. Only in memory: a new
coordinator tells everybody once.
"""

from __future__ import annotations

from fairlead_broker.groups.events import JOIN_EPOCH, Heartbeat
from fairlead_broker.groups.holdings import is_exactly
from fairlead_broker.registry.group_records import MemberRecord


class KnownAssignments:
    """The members that have said that they own what is written for them, since that last changed."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: set[str] = set()

    def note(self, heartbeat: Heartbeat, written: MemberRecord | None) -> None:
        """Learn from a heartbeat what its member knows; who joins knows nothing."""
        if heartbeat.member_epoch == JOIN_EPOCH:
            self._members.discard(heartbeat.member_id)
        elif (
            heartbeat.owned is not None
            and written is not None
            and heartbeat.member_epoch == written.epoch
            and is_exactly(heartbeat.owned, written.assigned)
        ):
            self._members.add(heartbeat.member_id)

    def forget(self, member_id: str) -> None:
        """What is written for a member has changed."""
        self._members.discard(member_id)

    def has_to_be_told(self, heartbeat: Heartbeat, record: MemberRecord) -> bool:
        """Whether an answer has to tell the assignment in a record, also where the heartbeat did not change it."""
        if heartbeat.owned is None:
            return heartbeat.member_id not in self._members
        is_full = heartbeat.subscription is not None or heartbeat.member_epoch == JOIN_EPOCH
        return is_full or not is_exactly(heartbeat.owned, record.assigned)
