"""A broker as groups see it: a lease, a mirror of brokers and topics, and the groups that it coordinates.

Any broker takes a call about any group, and forwards it once. What it answers needs a lease that certainly lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_broker.registry.group_records import CoordinatorRecord
from fairlead_broker.registry.records import Addresses, BrokerRegistration, BrokerState
from groups import guards
from groups.coordinator import Coordinator
from groups.keys import coordinator_key
from groups.messages import Answer, Refused, Request
from groups.mirror import GroupMirror
from simulator.process import Process
from simulator.store import Compare, Item, Transaction, broker_key

if TYPE_CHECKING:
    from groups.world import World

AGAIN_SECONDS: Final = 0.3
LEASE_SHARE: Final = 0.8
"""Of a lease since the keep-alive was sent: for so long it certainly lasts, unless it is ended early."""
NOWHERE: Final = Addresses(data="-", peer="-", ops="-")
REGISTRATION: Final = BrokerRegistration(
    state=BrokerState.RUNNING,
    addresses=NOWHERE,
    rack=None,
    release="",
    peer_secret_hash="",
    directories=(),
    quarantined=(),
    intact_since=None,
)


class Broker(Process):
    """One member of the cluster."""

    def __init__(self, world: World, number: int) -> None:
        """Be there, switched off."""
        super().__init__(world, number)  # type: ignore[arg-type]
        self.epoch = BrokerEpoch(0)
        self.lease = 0
        self.stopping = False
        self.groups: dict[str, Coordinator] = {}
        self.mirror = GroupMirror(self)
        self._world = world
        self._known: dict[str, CoordinatorRecord] = {}
        self._confirmed_until = 0.0

    # -- processes

    def start(self) -> None:
        """Begin a process."""
        assert not self.alive, "one process at a time"
        self.life += 1
        self.alive, self.stopping, self.paused_until = True, False, None
        self._backlog.clear()
        self._forget()
        self.mirror = GroupMirror(self)
        self._register()

    def kill(self) -> None:
        """End the process at once."""
        if self.alive:
            self.alive = False
            self.life += 1
            self._forget()
            self.mirror.close()

    def stop(self) -> None:
        """Give every group back, end the registration, and exit."""
        if self.stopping:
            return
        self.stopping = True
        for coordinator in list(self.groups.values()):
            coordinator.release()
        self.after(AGAIN_SECONDS, self._stopped)

    def _stopped(self) -> None:
        lease, store = self.lease, self._world.store
        self.ask_store(lambda: store.revoke(lease), lambda _: None)
        self.kill()
        self._world.faults.stopped(self)

    def _forget(self) -> None:
        self.epoch, self._confirmed_until = BrokerEpoch(0), 0.0
        for coordinator in self.groups.values():
            coordinator.closed = True
        self.groups = {}
        self._known = {}

    # -- registration

    def _register(self) -> None:
        self.lease = lease = self._world.next_lease()
        seconds, store, sent = self._world.plan.lease_seconds, self._world.store, self._world.now

        def put() -> tuple[bool, Revision]:
            if broker_key(self.number) in store.items:
                return False, store.revision
            store.grant(lease, seconds)
            return store.transact(
                Transaction(
                    (Compare(broker_key(self.number), 0, created=True),),
                    ((broker_key(self.number), REGISTRATION, lease),),
                )
            )

        self.ask_store(put, self._registered, lease, sent)

    def _registered(self, answer: tuple[bool, Revision] | None, lease: int, sent: float) -> None:
        if answer is None or not answer[0]:
            self.after(AGAIN_SECONDS, self._register)
            return
        self.epoch = BrokerEpoch(answer[1])
        self._confirmed_until = sent + self._world.plan.lease_seconds * LEASE_SHARE
        self.after(self._world.plan.lease_seconds / 3, self._keep_alive, lease)
        self.mirror.list()

    def _keep_alive(self, lease: int) -> None:
        if lease == self.lease:
            seconds, sent, store = self._world.plan.lease_seconds, self._world.now, self._world.store
            self.ask_store(lambda: store.keep_alive(lease, seconds), self._kept_alive, lease, sent)

    def _kept_alive(self, held: bool | None, lease: int, sent: float) -> None:
        if lease != self.lease:
            return
        if held is False:
            self._world.note("lease lost", self.number)
            self._forget()
            self._register()
            return
        if held:
            until = sent + self._world.plan.lease_seconds * LEASE_SHARE
            self._confirmed_until = max(self._confirmed_until, until)
        self.after(self._world.plan.lease_seconds / 3, self._keep_alive, lease)

    @property
    def leased(self) -> bool:
        """Whether the lease certainly lasts, so that nobody else can have taken over (rule 3.7)."""
        return self._world.now < self._confirmed_until

    def mirrored(self, topics_changed: bool) -> None:
        """Hear of changes of brokers and topics."""
        if topics_changed:
            for coordinator in list(self.groups.values()):
                coordinator.wake()

    # -- calls

    def call(self, request: Request) -> None:
        """Take a call about a group: as its coordinator, or on the way there."""
        if not self.epoch or not guards.may_answer(self) or self.stopping:
            self.answer(request, Refused("coordination_unavailable"))
        elif (coordinator := self.groups.get(request.group)) is not None:
            coordinator.take(request)
        else:
            record = self._known.get(request.group)
            if record is not None and self._counts(record) and record.broker != self.number:
                self._forward(request, record.broker)
            else:
                self._look(request)

    def answer(self, request: Request, answer: Answer) -> None:
        """Tell a member."""
        world = self._world
        receive = world.members[request.sender].answered
        world.network.send(self.number, request.sender, receive, request, answer)

    def drop(self, coordinator: Coordinator) -> None:
        """Coordinate a group no longer."""
        if self.groups.get(coordinator.name) is coordinator:
            del self.groups[coordinator.name]
        self._known.pop(coordinator.name, None)

    def _look(self, request: Request) -> None:
        store, key = self._world.store, coordinator_key(request.group)
        self.ask_store(lambda: (store.items.get(key),), self._looked, request)

    def _looked(self, answer: tuple[Item | None] | None, request: Request) -> None:
        if answer is None or not self.epoch:
            self.answer(request, Refused("coordination_unavailable"))
            return
        if request.group in self.groups:
            self.groups[request.group].take(request)
            return
        (item,) = answer
        own = item is not None and (item.value.broker, item.value.broker_epoch) == (self.number, self.epoch)
        if item is not None and not own and self._counts(item.value):
            self._known[request.group] = item.value
            self._forward(request, item.value.broker)
            return
        claimant = BrokerId(self.number) if own else self._claimant(request.group)
        if claimant != self.number:
            self._forward(request, claimant)
        elif not self.stopping:
            coordinator = Coordinator(self, request.group)
            self.groups[request.group] = coordinator
            coordinator.take(request)
            coordinator.claim(item)
        else:
            self.answer(request, Refused("shutting_down"))

    def _counts(self, record: CoordinatorRecord) -> bool:
        """Say whether the holder of a claim is there, in the life in which it claimed."""
        registered = self.mirror.brokers.get(record.broker)
        return registered is not None and BrokerEpoch(registered.create_revision) == record.broker_epoch

    def _claimant(self, group: str) -> BrokerId:
        """Pick who claims a group that nobody has: the same from every broker that sees the same brokers."""
        brokers = sorted(self.mirror.brokers) or [BrokerId(self.number)]
        return max(brokers, key=lambda broker: crc32(f"{group}/{broker}".encode()))

    def _forward(self, request: Request, broker: BrokerId) -> None:
        world = self._world
        if request.hops or broker == self.number:
            self._known.pop(request.group, None)
            self.answer(request, Refused("not_coordinator"))
        else:
            forwarded = replace(request, hops=request.hops + 1)
            world.network.send(self.number, broker, world.brokers[broker].call, forwarded)

    def transact(self, transaction: Transaction, answered: Callable[..., None], *more: Any) -> None:
        """Write; `answered` gets whether it was done and the revision, or None if nobody knows."""
        store = self._world.store
        self.ask_store(lambda: store.transact(transaction), answered, *more)
