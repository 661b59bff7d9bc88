"""Faults in the simulation of transactions: faults of brokers, of the store and of clients, and changes of leaders."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from simulator.process import Process
from simulator.storm import Storm
from transactional.plan import Fault

if TYPE_CHECKING:
    from transactional.broker import Broker
    from transactional.client import Client
    from transactional.world import World

LEASE_SECONDS = 1.0
LEARNS_SECONDS = 1.5
"""Longest time until a broker learns that it no longer leads a partition."""


class Faults(Storm):
    """The faults of one world."""

    _world: World

    def victim(self, kind: Enum) -> Process | None:
        """Return a random broker, or a random client for a fault of clients."""
        world = self._world
        if kind.name.startswith("CLIENT"):
            return world.schedule.rng.choice(list(world.clients.values()))
        if kind is Fault.MOVE:
            return None
        return world.schedule.rng.choice(list(world.brokers.values()))

    def stop(self) -> None:
        """Stop all faults, and heal everything that can be healed."""
        super().stop()
        for process in (*self._world.brokers.values(), *self._world.clients.values()):
            process.resume()
        for partition in self._world.partitions:
            leadership = partition.leadership
            if leadership is None or not leadership.is_open:
                self._elect(partition.index)

    def _elect(self, index: int) -> None:
        """Make a random live broker the leader, and tell the previous leader some time later."""
        world = self._world
        partition = world.partitions[index]
        alive = [broker for broker in world.brokers.values() if broker.alive]
        if not alive:
            world.schedule.after(LEASE_SECONDS, self._elect, index)
            return
        before = partition.leadership
        partition.elect(world.schedule.rng.choice(alive))
        if before is not None and before.broker is not partition.leadership.broker:  # type: ignore[union-attr]
            delay = world.schedule.between(0.0, LEARNS_SECONDS)
            world.schedule.after(delay, before.broker.receive, self._learn, before.broker, index)

    def _learn(self, broker: Broker, index: int) -> None:
        leadership = self._world.partitions[index].leadership
        if leadership is not None and leadership.broker is not broker:
            broker.led.pop(index, None)

    def orphaned(self, broker: Broker) -> None:
        """Elect leaders for the partitions of a broker that has ended."""
        world = self._world
        for partition in world.partitions:
            if partition.leadership is not None and partition.leadership.broker is broker:
                delay = world.schedule.between(0.1, LEASE_SECONDS)
                world.schedule.after(delay, self._elect_again, partition.index, partition.epoch)

    def _elect_again(self, index: int, epoch: int) -> None:
        if self._world.partitions[index].epoch == epoch:
            self._elect(index)

    def _move(self, _: None) -> None:
        self._elect(self._world.schedule.rng.randrange(len(self._world.partitions)))

    def _pause(self, broker: Broker) -> None:
        world = self._world
        seconds = world.schedule.between(0.1, 3 * LEASE_SECONDS)
        broker.pause(seconds)
        if seconds > LEASE_SECONDS:
            self.orphaned(broker)

    def cut_for(self, links: list[tuple[int, int]], *, one_way: bool = True) -> None:
        """Cut links for some time, in some cases only one of the links."""
        rng = self._world.schedule.rng
        if one_way and rng.random() < 0.4:
            links = [rng.choice(links)]
        self.cut_until(links, 0.2, 2.5)

    # -- clients

    def fenced(self, client: Client) -> None:
        """Start a fenced process again some time later, unless another process of its program is running then."""
        schedule = self._world.schedule
        schedule.after(schedule.between(0.2, 2.0), self._start_again, client, client.life)

    def _start_again(self, client: Client, life: int) -> None:
        if not self._world.twin(client).alive and not self._calm:
            self.start(client, life)

    def _client_crash(self, client: Client) -> None:
        if client.alive:
            client.kill()
            self.fenced(client)

    def _client_pause(self, client: Client) -> None:
        client.pause(self._world.schedule.between(0.1, 2.5 * self._world.plan.timeout_ms / 1000))

    def _client_cut(self, client: Client) -> None:
        self.cut_for(self.links(client.number, list(self._world.brokers)))

    def _client_double(self, client: Client) -> None:
        """Start the other process of a program, after which this process is a zombie."""
        other = self._world.twin(client)
        if not other.alive:
            other.start()
