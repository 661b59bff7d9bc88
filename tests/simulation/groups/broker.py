"""The part of a broker that groups use: the registration, the topics, and the groups that it coordinates.

Any broker accepts calls about any group, and forwards a call at most once. A broker answers only while its lease has
certainly not expired. This module is a twin of `fairlead_broker.runtime.groups.groups` and `.claims` without an event
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.groups import TopicShape
from fairlead_broker.registry.group_records import CoordinatorRecord
from groups import guards
from groups.claim import GroupClaim
from groups.coordinator import Coordinator
from groups.keys import coordinator_key
from groups.messages import Answer, Refused, Request
from simulator.broker import AGAIN_SECONDS
from simulator.broker import Broker as Frame
from simulator.store import Item, Key, Transaction

if TYPE_CHECKING:
    from groups.world import World


class Broker(Frame):
    """A broker of the cluster."""

    world: World

    def __init__(self, world: World, number: int, coordinator: type[GroupClaim] = Coordinator) -> None:
        """Create a broker that is not running; `coordinator` is the class of the groups that it coordinates."""
        super().__init__(world, number)
        self._coordinator = coordinator
        self.groups: dict[str, GroupClaim] = {}
        self.topics: dict[str, TopicShape] = {}
        """Topics by name, replaced instead of modified, so that a turn can keep the version it began with."""
        self._holders: dict[str, CoordinatorRecord] = {}

    # -- processes

    def start(self) -> None:
        """Start a process."""
        super().start()
        self.topics = {}
        self._forget()
        self.register()

    def kill(self) -> None:
        """End the process at once."""
        if self.alive:
            super().kill()
            self._forget()

    def stop(self) -> None:
        """Release every group, delete the registration, and exit."""
        if self.stopping:
            return
        self.stopping = True
        for coordinator in list(self.groups.values()):
            coordinator.release()
        self.after(AGAIN_SECONDS, self._stopped)

    def _stopped(self) -> None:
        lease, store = self.lease, self.world.store
        self.ask_store(lambda: store.revoke(lease), lambda _: None)
        self.kill()
        self.world.faults.stopped(self)

    def registered(self, items: dict[Key, Item]) -> None:
        """Read the brokers and topics of the store."""
        self.mirror.list()

    def lease_lost(self) -> None:
        """Drop all groups, and register again."""
        self._forget()
        self.register()

    def _forget(self) -> None:
        self.epoch, self._leased_until = BrokerEpoch(0), 0.0
        for coordinator in self.groups.values():
            coordinator.closed = True
        self.groups = {}
        self._holders = {}

    def mirrored(self, changed: list[Key]) -> None:
        """Wake the groups after a change to topics."""
        if any(kind == "topic" for kind, _ in changed):
            self.topics = {name: item.value for name, item in self.mirror.tables["topic"].items()}
            for coordinator in list(self.groups.values()):
                coordinator.wake()

    # -- calls

    def call(self, request: Request) -> None:
        """Handle a call about a group as its coordinator, or forward it."""
        if not self.epoch or not guards.may_answer(self) or self.stopping:
            self.answer(request, Refused("coordination_unavailable"))
        elif (coordinator := self.groups.get(request.group)) is not None:
            coordinator.take(request)
        else:
            holder = self._holders.get(request.group)
            if holder is not None and self.counts(holder) and holder.broker != self.number:
                self._forward(request, holder.broker)
            else:
                store, key = self.world.store, coordinator_key(request.group)
                self.ask_store(lambda: (store.items.get(key),), self._looked, request)

    def answer(self, request: Request, answer: Answer) -> None:
        """Send an answer to a member."""
        world = self.world
        receive = world.members[request.sender].answered
        world.network.send(self.number, request.sender, receive, request, answer)

    def drop(self, coordinator: GroupClaim) -> None:
        """Remove a group that this broker no longer coordinates."""
        if self.groups.get(coordinator.name) is coordinator:
            del self.groups[coordinator.name]
        self._holders.pop(coordinator.name, None)

    def _looked(self, answer: tuple[Item | None] | None, request: Request) -> None:
        if answer is None or not self.epoch:
            self.answer(request, Refused("coordination_unavailable"))
            return
        if request.group in self.groups:
            self.groups[request.group].take(request)
            return
        (item,) = answer
        own = item is not None and (item.value.broker, item.value.broker_epoch) == (self.number, self.epoch)
        if item is not None and not own and self.counts(item.value):
            self._holders[request.group] = item.value
            self._forward(request, item.value.broker)
            return
        claimant = BrokerId(self.number) if own else self._claimant(request.group)
        if claimant != self.number:
            self._forward(request, claimant)
        elif not self.stopping:
            coordinator = self._coordinator(self, request.group)
            self.groups[request.group] = coordinator
            coordinator.take(request)
            coordinator.claim(item)
        else:
            self.answer(request, Refused("shutting_down"))

    def counts(self, record: CoordinatorRecord) -> bool:
        """Return whether the holder of a claim is still registered in the incarnation that made the claim."""
        registered = self.mirror.brokers.get(record.broker)
        return registered is not None and BrokerEpoch(registered.create_revision) == record.broker_epoch

    def _claimant(self, group: str) -> BrokerId:
        """Return the broker that claims an unowned group, which is the same for all brokers with the same mirror."""
        brokers = sorted(self.mirror.brokers) or [BrokerId(self.number)]
        return max(brokers, key=lambda broker: crc32(f"{group}/{broker}".encode()))

    def _forward(self, request: Request, broker: BrokerId) -> None:
        world = self.world
        if request.hops or broker == self.number:
            self._holders.pop(request.group, None)
            self.answer(request, Refused("not_coordinator"))
        else:
            forwarded = replace(request, hops=request.hops + 1)
            world.network.send(self.number, broker, world.brokers[broker].call, forwarded)

    def transact(self, transaction: Transaction, answered: Callable[..., None], *more: Any) -> None:
        """Write a transaction; `answered` gets its success and revision, or None if the outcome is unknown."""
        store = self.world.store
        self.ask_store(lambda: store.transact(transaction), answered, *more)
