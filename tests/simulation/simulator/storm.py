"""What the storms of all simulated worlds have in common: when the next fault strikes, and those of the store."""

from __future__ import annotations

from typing import Any


class Storm:
    """The faults of one world, struck at random moments until `stop`. A fault is the method of its name."""

    def __init__(self, world: Any) -> None:
        """Begin calm."""
        self._world = world
        self._calm = False

    def begin(self) -> None:
        """Let things go wrong from now on."""
        if self._world.plan.faults:
            self._later()

    def _later(self) -> None:
        schedule = self._world.schedule
        schedule.after(schedule.rng.expovariate(1 / self._world.plan.fault_seconds), self._strike)

    def _strike(self) -> None:
        """Draw a fault and let it happen."""
        raise NotImplementedError

    # -- the store

    def _lease_early(self, broker: Any) -> None:
        if broker.alive:
            self._world.store.revoke(broker.lease)

    def _lease_late(self, _: Any) -> None:
        self._world.store.prolong(self._world.schedule.between(0.2, 2.0))

    def _store_away(self, _: Any) -> None:
        world = self._world
        world.store.available = False
        world.schedule.after(world.schedule.between(0.2, 2.0), self._store_back)

    def _store_back(self) -> None:
        self._world.store.available = True

    def _watch(self, broker: Any) -> None:
        watcher = (broker.number, broker.life)
        if self._world.schedule.happens(0.5):
            self._world.store.cancel_watch(watcher)
        else:
            self._world.store.replay(watcher, 3)
