"""Messages between brokers and clients: late, lost, repeated, out of order, one way only.

Order holds nowhere: every message is a stream of its own. What a broker sends over a link that is cut is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from simulator.schedule import Schedule

Node: TypeAlias = int
"""A broker's number; clients have numbers from 100 on, the store is 0."""
STORE: Node = 0
CLIENTS_FROM: Node = 100


class Receiver(Protocol):
    """Whoever has a number."""

    def receive(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do what a message asks for, unless this is down."""


@dataclass(slots=True)
class Weather:
    """How bad the network is; drawn for each world, calm when the faults stop."""

    loss: float = 0.0
    repeat: float = 0.0
    slow: float = 0.0
    """Share of messages that take up to `slow_seconds` more."""
    slow_seconds: float = 1.0
    usual_seconds: float = 0.01


@dataclass(slots=True)
class Network:
    """Every link."""

    schedule: Schedule
    weather: Weather = field(default_factory=Weather)
    cut: set[tuple[Node, Node]] = field(default_factory=set)
    nodes: dict[Node, Receiver] = field(default_factory=dict)
    late: dict[tuple[str, Node], float] = field(default_factory=dict)
    """How much later what a broker sends arrives: its `fetch`, `progress` or `write` to the store."""

    def delay(self) -> float:
        """Draw how long a message takes."""
        weather, rng = self.weather, self.schedule.rng
        seconds = weather.usual_seconds * (0.2 + 1.6 * rng.random())
        if weather.slow and rng.random() < weather.slow:
            seconds += weather.slow_seconds * rng.random()
        return seconds

    def passes(self, source: Node, target: Node) -> bool:
        """Draw whether a message gets through."""
        if self.cut and (source, target) in self.cut:
            return False
        return not (self.weather.loss and self.schedule.rng.random() < self.weather.loss)

    def lateness(self, kind: str, source: Node) -> float:
        """Say how much later than others a message of this kind arrives."""
        return self.late.get((kind, source), 0.0) if self.late else 0.0

    def send(
        self, source: Node, target: Node, action: Callable[..., None], *arguments: Any, late: float = 0.0
    ) -> None:
        """Let the target do something, once, twice or never."""
        if not self.passes(source, target):
            return
        receive = self.nodes[target].receive
        self.schedule.after(self.delay() + late, receive, action, *arguments)
        if self.weather.repeat and self.schedule.rng.random() < self.weather.repeat:
            self.schedule.after(self.delay() + self.weather.slow_seconds / 2, receive, action, *arguments)

    def send_once(self, source: Node, target: Node, action: Callable[..., None], *arguments: Any) -> None:
        """Let the target do something, once or never: a request over one connection."""
        if self.passes(source, target):
            self.schedule.after(self.delay(), self.nodes[target].receive, action, *arguments)
