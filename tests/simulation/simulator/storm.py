"""Faults of brokers, links and the store at random times, in the worlds of every suite.

Each fault of a plan is carried out by the method of the same name. Damage that can be healed is healed when the faults
stop.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from simulator.network import STORE
from simulator.process import Process

if TYPE_CHECKING:
    from simulator.broker import Broker
    from simulator.world import World


class Storm:
    """The faults of one world."""

    PAUSE_LEASES: ClassVar[float] = 2.0
    """Longest pause of a broker, as a multiple of the lease."""

    def __init__(self, world: World) -> None:
        """Create faults that have not begun."""
        self._world = world
        self._calm = False

    def begin(self) -> None:
        """Start the faults."""
        if self._world.plan.faults:
            self._later()

    def stop(self) -> None:
        """Stop all faults, and heal everything that can be healed."""
        world = self._world
        self._calm = True
        world.network.cut.clear()
        world.network.weather.loss = world.network.weather.repeat = world.network.weather.slow = 0.0
        world.store.available = True
        for broker in world.brokers.values():
            if not broker.alive:
                broker.start()

    def _later(self) -> None:
        schedule = self._world.schedule
        schedule.after(schedule.rng.expovariate(1 / self._world.plan.fault_seconds), self._strike)

    def _strike(self) -> None:
        if self._calm:
            return
        world = self._world
        kind = world.schedule.rng.choice(world.plan.faults)
        victim = self.victim(kind)
        world.note("fault", kind.value, "" if victim is None else victim.number)
        getattr(self, f"_{kind.name.lower()}")(victim)
        world.judge.counts[f"fault {kind.value}"] += 1
        self._later()

    def victim(self, kind: Enum) -> Process | None:
        """Choose at random the process that a fault hits."""
        raise NotImplementedError

    def draw_broker(self, leading: list[Any], share: float) -> Any:
        """Return a random broker, which leads a partition with the probability `share`."""
        rng = self._world.schedule.rng
        if leading and rng.random() < share:
            return rng.choice(leading)
        return rng.choice(list(self._world.brokers.values()))

    # -- processes

    def bring_back(self, process: Process, least: float = 0.05, most: float = 2.0) -> None:
        """Start a process again after some time."""
        schedule = self._world.schedule
        schedule.after(schedule.between(least, most), self.start, process, process.life)

    def start(self, process: Process, life: int) -> None:
        """Start a process unless a newer one has run since."""
        if not process.alive and process.life == life:
            process.start()

    def stopped(self, broker: Broker) -> None:
        """Start a cleanly stopped broker again."""
        if self._calm:
            broker.start()
        else:
            self.bring_back(broker)

    def _kill(self, broker: Broker) -> None:
        if broker.alive:
            broker.kill()
            self.bring_back(broker)

    def _stop(self, broker: Any) -> None:
        broker.receive(broker.stop)

    def _pause(self, broker: Broker) -> None:
        most = self.PAUSE_LEASES * self._world.plan.lease_seconds
        broker.pause(self._world.schedule.between(0.1, most))

    # -- links

    def links(self, one: int, others: list[int]) -> list[tuple[int, int]]:
        """Return the links between a node and others, in both directions."""
        return [link for other in others for link in ((one, other), (other, one))]

    def _cut_store(self, broker: Broker) -> None:
        self.cut_for(self.links(broker.number, [STORE]))

    def _cut_peers(self, broker: Broker) -> None:
        others = [number for number in self._world.brokers if number != broker.number]
        if others:
            self.cut_for(self.links(broker.number, [self._world.schedule.rng.choice(others)]))

    def cut_for(self, links: list[tuple[int, int]], *, one_way: bool = True) -> None:
        """Cut links for some time, in some cases only one of the links."""
        rng = self._world.schedule.rng
        if one_way and rng.random() < 0.4:
            links = [rng.choice(links)]
        self.cut_until(links, 0.2, self.cut_leases() * self._world.plan.lease_seconds)

    def cut_leases(self) -> float:
        """Return the maximum duration of a cut, as a multiple of the lease."""
        return 2.5

    def cut_until(self, links: list[tuple[int, int]], least: float, most: float) -> None:
        """Cut links for a drawn time."""
        schedule, cut = self._world.schedule, self._world.network.cut
        cut.update(links)
        schedule.after(schedule.between(least, most), cut.difference_update, links)

    # -- the store

    def _lease_early(self, broker: Broker) -> None:
        if broker.alive:
            self._world.store.revoke(broker.lease)

    def _lease_late(self, _: Broker) -> None:
        self._world.store.prolong(self._world.schedule.between(0.2, 2.0))

    def _store_away(self, _: Broker) -> None:
        world = self._world
        world.store.available = False
        world.schedule.after(world.schedule.between(0.2, 2.0), self._store_back)

    def _store_back(self) -> None:
        self._world.store.available = True

    def _watch(self, broker: Broker) -> None:
        watcher = (broker.number, broker.life)
        if self._world.schedule.happens(0.5):
            self._world.store.cancel_watch(watcher)
        else:
            self._world.store.replay(watcher, 3)
