"""The invariants of classic groups, each a named class of violation.

The judge sees every revision of the store and every answer of a coordinator. The contents of the store are the truth
about a group, not the memory of a process.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from classic.keys import group_key, member_key
from fairlead_api.identifiers import Revision
from fairlead_broker.groups.classic.messages import Accepted, Beat, ClassicReply, Sync, Synced
from groups.messages import Request
from simulator.judge import Violation
from simulator.store import Change

if TYPE_CHECKING:
    from classic.coordinator import Coordinator
    from classic.world import World


class TwoOwners(Violation):
    """Two members were given the same partition in the same generation."""


class GenerationsRise(Violation):
    """A generation was stored after a later one."""


class CommitsKeepOrder(Violation):
    """An offset was overwritten by a member of an earlier generation."""


class AnswersAreStored(Violation):
    """A member was given an assignment that the store does not have."""


class Judge:
    """Sees everything, and raises the violated invariant."""

    def __init__(self, world: World) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._generation = 0
        self._owners: dict[int, str] = {}
        """Owner of each partition in the newest generation that a member was given."""
        self._given = 0
        self._committed: dict[int, int] = {}
        """Generation in which the offset of a partition was committed."""

    def written(self, revision: Revision, changes: list[Change]) -> None:
        """See the changes of a revision of the store."""
        del revision
        for key, _, after in changes:
            if key[0] == "classic":
                if after is None:
                    # A group without members starts again at its first generation.
                    self._generation, self._given, self._owners, self._committed = 0, 0, {}, {}
                elif after.value.generation < self._generation:
                    message = f"generation {after.value.generation} after {self._generation}"
                    raise GenerationsRise(message)
                else:
                    self._generation = after.value.generation
            elif key[0] == "offsets" and after is not None:
                member, _, generation = after.value.metadata.rpartition(":")
                last = self._committed.get(after.value.partition, 0)
                if int(generation) < last:
                    message = f"{member} of generation {generation} overwrote an offset of generation {last}"
                    raise CommitsKeepOrder(message)
                self._committed[after.value.partition] = int(generation)

    def answers(self, coordinator: Coordinator, request: Request, reply: ClassicReply) -> None:
        """See an answer to a member."""
        content: object = request.content
        if isinstance(reply, Synced) and isinstance(content, Sync):
            self._assigned(coordinator, content, reply)
        elif isinstance(reply, Accepted) and isinstance(content, Beat):
            self.counts["heartbeats"] += 1

    def _assigned(self, coordinator: Coordinator, sync: Sync, reply: Synced) -> None:
        items, name = self._world.store.items, coordinator.name
        group, member = items.get(group_key(name)), items.get(member_key(name, sync.member_id))
        if group is None or member is None or group.value.generation != sync.generation:
            message = f"{sync.member_id} in generation {sync.generation} is not stored"
            raise AnswersAreStored(message)
        if member.value.assignment != reply.assignment:
            message = f"{sync.member_id} has {reply.assignment!r}; stored is {member.value.assignment!r}"
            raise AnswersAreStored(message)
        if sync.generation != self._given:
            self._given, self._owners = sync.generation, {}
        # A static member passes its partitions to its next process, which has another id.
        owner = sync.instance_id or sync.member_id
        for partition in json.loads(reply.assignment or b"[]"):
            if self._owners.setdefault(partition, owner) != owner:
                both = f"{owner} and {self._owners[partition]}"
                message = f"{both} own partition {partition} in generation {sync.generation}"
                raise TwoOwners(message)
