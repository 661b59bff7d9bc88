"""The common part of a broker in every suite: a process with a leased registration and a mirror of the store.

This module is a twin of `fairlead_broker.runtime.lifecycle` and of the coordination mirror without the event loop,
which would make a world take seconds instead of milliseconds (decision 0200).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fairlead_api.identifiers import BrokerEpoch, Revision
from fairlead_broker.registry.records import Addresses, BrokerRegistration, BrokerState
from simulator.mirror import Mirror
from simulator.process import Process
from simulator.store import Compare, Item, Key, Transaction, broker_key

AGAIN_SECONDS = 0.25
LEASE_SHARE = 0.8
"""Fraction of the lease time, from the last renewal request on, for which the lease cannot have expired."""
REGISTRATION = BrokerRegistration(
    state=BrokerState.RUNNING,
    addresses=Addresses(data="-", peer="-", ops="-"),
    rack=None,
    release="",
    peer_secret_hash="",
    directories=(),
    quarantined=(),
    intact_since=None,
)


def own_registration(broker: int, epoch: int) -> tuple[Compare, ...]:
    """Return compares that hold while the writer's incarnation is registered."""
    return (Compare(broker_key(broker), epoch, created=True),)


class Broker(Process):
    """A broker of the cluster."""

    def __init__(self, world: Any, number: int) -> None:
        """Create a broker that is not running."""
        super().__init__(world, number)
        self.stopping = False
        self.epoch = BrokerEpoch(0)
        self.lease = 0
        self.mirror = Mirror(self)
        self._leased_until = 0.0

    # -- methods that each suite overrides

    def registration(self, *context: Any) -> BrokerRegistration:
        """Return the registration of the new incarnation."""
        return REGISTRATION

    def registered(self, items: dict[Key, Item], *context: Any) -> None:
        """Begin the incarnation; `items` are the contents of the store."""
        raise NotImplementedError

    def lease_lost(self) -> None:
        """End the incarnation, and begin another in the same process."""
        raise NotImplementedError

    def mirrored(self, changed: list[Key]) -> None:
        """Apply changes in the mirror."""
        raise NotImplementedError

    # -- processes

    def start(self) -> None:
        """Start a process with an empty mirror."""
        super().start()
        self.stopping = False
        self.mirror = Mirror(self)

    def kill(self) -> None:
        """End the process at once."""
        super().kill()
        self.mirror.close()

    # -- registration

    def register(self, *context: Any) -> None:
        """Register under a new lease, and retry until it succeeds; `registration` and `registered` get `context`."""
        self.lease = lease = self.world.next_lease()
        registration, key = self.registration(*context), broker_key(self.number)
        store, seconds = self.world.store, self.world.plan.lease_seconds

        def put() -> tuple[bool, Revision, dict[Key, Item]]:
            if key in store.items:
                return False, store.revision, {}
            store.grant(lease, seconds)
            absent = Compare(key, 0, created=True)
            return *store.transact(Transaction((absent,), ((key, registration, lease),))), dict(store.items)

        self.ask_store(put, self._registered, lease, self.world.now, context)

    def _registered(
        self,
        answer: tuple[bool, Revision, dict[Key, Item]] | None,
        lease: int,
        sent: float,
        context: tuple[Any, ...],
    ) -> None:
        if answer is None or not answer[0]:
            # The key of the previous incarnation must expire first. If the answer to an earlier attempt was lost, the
            # key of that attempt is deleted with its lease.
            self.after(AGAIN_SECONDS, self.register, *context)
            return
        seconds = self.world.plan.lease_seconds
        self.epoch = BrokerEpoch(answer[1])
        self._leased_until = sent + seconds * LEASE_SHARE
        self.after(seconds / 3, self._keep_alive, lease)
        self.registered(answer[2], *context)

    def _keep_alive(self, lease: int) -> None:
        if lease == self.lease:
            seconds, sent, store = self.world.plan.lease_seconds, self.world.now, self.world.store
            self.ask_store(lambda: store.keep_alive(lease, seconds), self._kept_alive, lease, sent)

    def _kept_alive(self, held: bool | None, lease: int, sent: float) -> None:
        if lease != self.lease:
            return
        if held is False:
            self.world.note("lease lost", self.number, self.epoch)
            self.lease_lost()
            return
        seconds = self.world.plan.lease_seconds
        if held:
            self._leased_until = max(self._leased_until, sent + seconds * LEASE_SHARE)
        self.after(seconds / 3, self._keep_alive, lease)

    @property
    def leased(self) -> bool:
        """Return whether the lease cannot have expired according to this broker's clock (rule 3.7)."""
        return self.world.now < self._leased_until

    def change_registration(self, answered: Callable[..., None], *more: Any, **changes: Any) -> None:
        """Change fields of this broker's registration while this incarnation is registered."""
        key, epoch, lease, store = broker_key(self.number), self.epoch, self.lease, self.world.store

        def change() -> tuple[bool, Revision]:
            item = store.items.get(key)
            if item is None or item.create_revision != epoch:
                return False, store.revision
            changed = msgspec.structs.replace(item.value, **changes)
            own = own_registration(self.number, epoch)
            return store.transact(Transaction(own, ((key, changed, lease),)))

        self.ask_store(change, answered, *more)
