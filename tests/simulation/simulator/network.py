"""Messages between brokers and clients: late, lost, repeated, out of order, or in one direction only.

Messages may arrive in any order, because each has its own delay. A message over a cut link is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeAlias

from simulator.schedule import Schedule

Node: TypeAlias = int
"""Number of a node: 0 for the store, from 100 on for clients, and otherwise a broker's number."""
STORE: Node = 0
CLIENTS_FROM: Node = 100


class Receiver(Protocol):
    """A node with a number."""

    def receive(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run the action of a message, unless this node is down."""


@dataclass(slots=True)
class Weather:
    """The faults of the network, drawn for each world and absent after the storm."""

    loss: float = 0.0
    repeat: float = 0.0
    slow: float = 0.0
    """Fraction of messages that take up to `slow_seconds` longer."""
    slow_seconds: float = 1.0
    usual_seconds: float = 0.01

    @classmethod
    def drawn(cls, rng: Random, chance: float) -> Weather:
        """Return faults drawn at random with this chance, and otherwise a network without faults."""
        if rng.random() >= chance:
            return cls()
        return cls(
            loss=rng.choice((0.0, 0.02, 0.1)),
            repeat=rng.choice((0.0, 0.1, 0.4)),
            slow=rng.choice((0.0, 0.1, 0.3)),
            slow_seconds=rng.choice((0.3, 1.5, 4.0)),
            usual_seconds=rng.choice((0.005, 0.03)),
        )


@dataclass(slots=True)
class Network:
    """All links."""

    schedule: Schedule
    weather: Weather = field(default_factory=Weather)
    cut: set[tuple[Node, Node]] = field(default_factory=set)
    nodes: dict[Node, Receiver] = field(default_factory=dict)
    late: dict[tuple[str, Node], float] = field(default_factory=dict)
    """Additional delay of a broker's `fetch`, `progress` and `write` messages."""

    def delay(self) -> float:
        """Return a random delay of a message."""
        weather, rng = self.weather, self.schedule.rng
        seconds = weather.usual_seconds * (0.2 + 1.6 * rng.random())
        if weather.slow and rng.random() < weather.slow:
            seconds += weather.slow_seconds * rng.random()
        return seconds

    def passes(self, source: Node, target: Node) -> bool:
        """Draw whether a message arrives."""
        if self.cut and (source, target) in self.cut:
            return False
        return not (self.weather.loss and self.schedule.rng.random() < self.weather.loss)

    def lateness(self, kind: str, source: Node) -> float:
        """Return the additional delay of a kind of message."""
        return self.late.get((kind, source), 0.0) if self.late else 0.0

    def send(
        self, source: Node, target: Node, action: Callable[..., None], *arguments: Any, late: float = 0.0
    ) -> None:
        """Run an action at the target once, twice or never."""
        if not self.passes(source, target):
            return
        receive = self.nodes[target].receive
        self.schedule.after(self.delay() + late, receive, action, *arguments)
        if self.weather.repeat and self.schedule.rng.random() < self.weather.repeat:
            self.schedule.after(self.delay() + self.weather.slow_seconds / 2, receive, action, *arguments)

    def send_once(self, source: Node, target: Node, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action at the target at most once, as with a request over a single connection."""
        if self.passes(source, target):
            self.schedule.after(self.delay(), self.nodes[target].receive, action, *arguments)
