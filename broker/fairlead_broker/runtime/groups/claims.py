"""Lookup of group coordinators, and this broker's claims on groups.

Used by `groups`. A claim is valid while the mirror shows its broker in the incarnation that made the claim. An unowned
group is assigned by rendezvous hashing over the running brokers. Other brokers' claims are cached, so that most calls
need not read the store (protocol section 5, rule 1).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.group_store import Claim, GroupStore, Holder
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import UnknownOutcome
from fairlead_broker.registry.records import BrokerState
from fairlead_broker.runtime.groups import refusals as group_refusals

REMEMBERED_MAX: Final = 10_000
"""Maximum number of cached coordinators of other brokers' groups; the least recently used are dropped."""
ATTEMPTS_MAX: Final = 10
"""Maximum number of attempts to claim a group. A failed attempt means that another broker changed the claim, or that
the store's answer was lost."""


class GroupClaims:
    """Finds the coordinators of groups, and claims groups for this broker."""

    def __init__(self, store: GroupStore, mirror: Mirror, incarnation: Incarnation) -> None:
        self._store = store
        self._mirror = mirror
        self._incarnation = incarnation
        self._remembered: OrderedDict[str, Holder] = OrderedDict()

    async def elsewhere(self, group: str, *, again: bool) -> BrokerId | None:
        """Return the other broker that coordinates a group or should claim it; None if this broker is the coordinator.

        `again`: read the claim from the store instead of the cache. Raises `coordination_unavailable` or
        `CoordinationUnavailable`.
        """
        if not again and (remembered := self._from_memory(group)) is not None:
            return remembered
        _, holder = await self._look(group)
        broker = self._claimant(group) if holder is None else holder.broker
        return None if broker == self._incarnation.broker else broker

    async def claim(self, group: str) -> Claim:
        """Claim a group that hashing assigns to this broker.

        Raises `not_coordinator`, which names the coordinator. Also raises `coordination_unavailable` and
        `CoordinationUnavailable`.
        """
        for _ in range(ATTEMPTS_MAX):
            epoch = self._incarnation.epoch
            if not self._incarnation.confirms(epoch):
                raise group_refusals.lease_in_doubt(group)
            found, holder = await self._look(group)
            broker = self._claimant(group) if holder is None else holder.broker
            if broker != self._incarnation.broker:
                raise group_refusals.not_coordinator(group, broker, self._mirror.metadata)
            try:
                claim = await self._store.claim(group, found, self._incarnation.broker, epoch)
            except UnknownOutcome:
                # The outcome of the put is unknown. The next read shows the stored claim, and the claim that is written
                # afterwards fences a late put.
                continue
            if claim is not None:
                self._remembered.pop(group, None)
                return claim
        raise ProblemError(
            "coordination_unavailable",
            f"the claim on group {group} changed during each of {ATTEMPTS_MAX} attempts",
            retry_after_seconds=group_refusals.RETRY_SOON_SECONDS,
        )

    async def is_adoptable(self, group: str, holder: Holder | None) -> bool:
        """Return whether this incarnation holds the group's claim, or may claim an unowned group by hashing."""
        counting = None if holder is None else await self._counting(holder)
        if counting is not None:
            return counting.broker == self._incarnation.broker
        return self._is_running() and self._claimant(group) == self._incarnation.broker

    async def _look(self, group: str) -> tuple[Holder | None, Holder | None]:
        """Return a claim's stored holder, and its valid holder, which is the same broker or None."""
        found = await self._store.holder(group)
        holder = None if found is None else await self._counting(found)
        if holder is not None and holder.broker != self._incarnation.broker:
            self._remembered[group] = holder
            self._remembered.move_to_end(group)
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        return found, holder

    async def _counting(self, holder: Holder) -> Holder | None:
        if holder.broker_epoch > self._mirror.metadata.revision:
            # The holder registered at a revision that this broker's mirror has not reached yet.
            await self._mirror.wait_for(holder.broker_epoch)
        return holder if self.counts(holder) else None

    def counts(self, holder: Holder) -> bool:
        """Return whether a claim belongs to the current incarnation of a broker in the mirror."""
        registered = self._mirror.metadata.brokers.get(holder.broker)
        return registered is not None and BrokerEpoch(registered.create_revision) == holder.broker_epoch

    def _from_memory(self, group: str) -> BrokerId | None:
        holder = self._remembered.get(group)
        if holder is None:
            return None
        if not self.counts(holder):
            del self._remembered[group]
            return None
        return holder.broker

    def _is_running(self) -> bool:
        own = self._mirror.metadata.brokers.get(self._incarnation.broker)
        return own is not None and own.value.state is not BrokerState.STOPPING

    def _claimant(self, group: str) -> BrokerId:
        """Return the broker that should claim an unowned group. Raises `shutting_down` if no broker is running."""
        brokers = self._mirror.metadata.brokers
        for state in (BrokerState.RUNNING, BrokerState.DRAINING):
            candidates = [broker for broker, each in brokers.items() if each.value.state is state]
            if candidates:
                return claimant_of(group, candidates)
        raise group_refusals.no_coordinator(group)


def claimant_of(group: str, brokers: Collection[BrokerId]) -> BrokerId:
    """Return the broker to which rendezvous hashing assigns a group.

    When a broker leaves, only that broker's groups move.
    """

    def weight(broker: BrokerId) -> tuple[bytes, BrokerId]:
        return hashlib.blake2b(f"{broker}:{group}".encode(), digest_size=8).digest(), broker

    return max(brokers, key=weight)
