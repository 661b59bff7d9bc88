"""The claim of a group by one process: written, loaded once it holds, and dropped with its waiting calls.

The coordinators of both kinds of groups derive from `GroupClaim`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.registry.group_records import CoordinatorRecord, OffsetEntry
from groups import guards
from groups.keys import coordinator_key, group_items
from groups.messages import Partition, Refused, Request
from simulator.broker import own_registration
from simulator.store import Item, Key, Transaction

if TYPE_CHECKING:
    from groups.broker import Broker


class GroupClaim:
    """The claim of one group by one process."""

    def __init__(self, broker: Broker, name: str) -> None:
        """Create a coordinator that has not claimed the group."""
        self.name = name
        self.closed = False
        self.claim_revision = Revision(0)
        self.broker = broker
        self.entries: dict[Partition, OffsetEntry] = {}
        self._world: Any = broker.world
        self._busy = True
        self._timer = 0
        self._releasing = False

    def claim(self, found: Item | None) -> None:
        """Claim a group without a coordinator; `found` is the group's key as last read."""
        broker = self.broker
        record = CoordinatorRecord(broker=BrokerId(broker.number), broker_epoch=broker.epoch)
        compares = guards.claim(self.name, found, broker)
        broker.transact(Transaction(compares, ((coordinator_key(self.name), record, None),)), self._claimed)

    def _claimed(self, answer: tuple[bool, Revision] | None) -> None:
        if self.closed:
            return
        if answer is None or not answer[0]:
            self.drop()
            return
        self.claim_revision = answer[1]
        self._world.note("claims", self.broker.number, self.name, self.claim_revision)
        self.load()

    def load(self) -> None:
        """Read the group's records at a single revision after the claim."""
        store = self._world.store
        self.broker.ask_store(lambda: group_items(store, self.name), self.loaded)

    def loaded(self, items: dict[Key, Item] | None) -> None:
        """Coordinate the group after its records were read from the store."""
        if self.closed:
            return
        if items is None:
            self.drop()
            return
        self.take_over(items)

    def take_over(self, items: dict[Key, Item]) -> None:
        """Coordinate the group with its records."""
        raise NotImplementedError

    def take(self, request: Request) -> None:
        """Take a call of a member."""
        raise NotImplementedError

    def release(self) -> None:
        """Release the group as soon as no write of the group is running."""
        raise NotImplementedError

    def unanswered(self) -> Iterable[Request]:
        """Return the calls that wait for an answer."""
        raise NotImplementedError

    def drop(self) -> None:
        """Stop coordinating; waiting members retry."""
        if self.closed:
            return
        self.closed = True
        self.broker.drop(self)
        self._world.note("drops", self.broker.number, self.name)
        for request in self.unanswered():
            self.broker.answer(request, Refused("coordination_unavailable"))

    def compares(self) -> tuple[Any, ...]:
        """Return the compares of a write that only the holder of this claim may make."""
        return (
            *guards.claimed(self.name, self.claim_revision),
            *own_registration(self.broker.number, self.broker.epoch),
        )
