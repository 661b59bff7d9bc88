"""Clients: producers of unique values, idempotent or not, and readers that remember the offsets they have seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitions.leading import Leading
from partitions.messages import Outcome, Produce, ReadAnswer

if TYPE_CHECKING:
    from partitions.world import World

PATIENCE_SECONDS = 2.0
ATTEMPTS_MAX = 8
IN_FLIGHT_MAX = 3
READ_MAX = 4


@dataclass(slots=True, eq=False)
class Request:
    """A value that is being produced."""

    value: int
    producer: int
    sequence: int
    acks_all: bool
    attempts: int = 0
    sent: int = 0
    """Number of the running attempt. An answer to an earlier attempt is ignored as late."""
    done: bool = False
    maybe: bool = False
    """Whether the outcome of some attempt is unknown."""


class Client:
    """Base class of clients, with a number in the network, a partition, and a choice of the broker to call."""

    def __init__(self, world: World, number: int, partition: int) -> None:
        """Create a client."""
        self.world = world
        self.number = number
        self.partition = partition

    def receive(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action at once, because clients are always up."""
        action(*arguments)

    def leader(self) -> Leading | None:
        """Draw one of the brokers that act as leader, including deposed leaders."""
        world = self.world
        found = [
            role
            for broker in world.brokers.values()
            if isinstance(role := broker.roles.get(self.partition), Leading)
        ]
        if not found:
            return None
        return found[0] if len(found) == 1 else world.schedule.rng.choice(found)


class Producer(Client):
    """A producer that stores values, one after another or a few at once."""

    def __init__(self, world: World, number: int, partition: int) -> None:
        """Start a producer that has not yet sent a value."""
        super().__init__(world, number, partition)
        self._idempotent = world.plan.idempotent
        self._producer = world.next_producer() if self._idempotent else -1
        self._sequence = 0
        self.open: list[Request] = []
        world.schedule.after(world.schedule.between(0, 1), self._go_on)

    def _go_on(self) -> None:
        world = self.world
        if len(self.open) < (IN_FLIGHT_MAX if self._idempotent else 1) and world.traffic:
            acks_all = world.schedule.happens(0.9)
            request = Request(world.next_value(), self._producer, self._sequence, acks_all)
            if self._idempotent:
                self._sequence += 1
            self.open.append(request)
            self._send(request)
        if world.traffic or self.open:
            world.schedule.after(world.schedule.between(0.2, 1.8) * world.plan.think_seconds, self._go_on)

    def _send(self, request: Request) -> None:
        if request.done:
            return
        world = self.world
        leading = self.leader()
        request.attempts += 1
        request.sent += 1
        if leading is None:
            self._answered(request, request.sent, Outcome.FAILED, -1)
            return
        broker, sent = leading.broker.number, request.sent
        partition = self.partition

        def answer(outcome: Outcome, offset: int) -> None:
            world.network.send(broker, self.number, self._answered, request, sent, outcome, offset)

        produce = Produce(request.value, request.producer, request.sequence, request.acks_all, answer)
        send = world.network.send if self._idempotent else world.network.send_once
        send(self.number, broker, world.produce, broker, partition, produce)
        world.schedule.after(PATIENCE_SECONDS, self._answered, request, sent, Outcome.MAYBE, -1)

    def _answered(self, request: Request, sent: int, outcome: Outcome, offset: int) -> None:
        if request.done or (sent != request.sent and outcome is not Outcome.OK):
            return
        if outcome is Outcome.OK:
            if request.acks_all:
                self.world.judge.acknowledged(self.partition, request.value, offset)
            self._finish(request)
        elif not self._idempotent:
            if outcome is Outcome.FAILED and not request.maybe:
                self.world.judge.failed_values.add(request.value)
            self._finish(request)
        elif outcome is Outcome.UNKNOWN_PRODUCER or request.attempts >= ATTEMPTS_MAX:
            self._give_up(request)
        else:
            request.maybe = True
            request.sent += 1
            pause = self.world.schedule.between(0.05, 0.4)
            self.world.schedule.after(pause, self._send, request)

    def _finish(self, request: Request) -> None:
        request.done = True
        if request in self.open:
            self.open.remove(request)

    def _give_up(self, request: Request) -> None:
        """Use another producer id, because values sent under the current one may or may not be stored."""
        producer = request.producer
        for each in [each for each in self.open if each.producer == producer]:
            self._finish(each)
        if producer == self._producer:
            self._producer = self.world.next_producer()
            self._sequence = 0


class Reader(Client):
    """A client that reads a partition from its beginning, and keeps the newest leader epoch that it has received."""

    def __init__(self, world: World, number: int, partition: int) -> None:
        """Start a reader at offset 0."""
        super().__init__(world, number, partition)
        self._position = 0
        self._seen = (-1, 0)
        """Leader epoch and high watermark, each the highest received so far."""
        world.schedule.after(world.schedule.between(0, 1), self._go_on)

    def _go_on(self) -> None:
        world = self.world
        leading = self.leader()
        if leading is not None:
            world.network.send(
                self.number,
                leading.broker.number,
                world.read,
                leading.broker.number,
                self.partition,
                self._position,
                self.carried_epoch(),
                self._answer_from(leading.broker.number, self._seen),
            )
        world.schedule.after(world.schedule.between(0.2, 1.8) * world.plan.think_seconds, self._go_on)

    def carried_epoch(self) -> int:
        """Return the highest leader epoch that this reader has received (rule 4.9)."""
        return self._seen[0]

    def _answer_from(self, broker: int, seen: tuple[int, int]) -> Callable[[ReadAnswer], None]:
        def answer(what: ReadAnswer) -> None:
            self.world.network.send(broker, self.number, self._answered, what, seen)

        return answer

    def _answered(self, answer: ReadAnswer, seen: tuple[int, int]) -> None:
        judge = self.world.judge
        judge.read(self.partition, answer.leader_epoch, answer.offset, answer.values)
        if answer.offset == self._position:
            self._position += len(answer.values)
        high_watermark = answer.high_watermark
        if high_watermark is not None:
            judge.latest(self.partition, seen, answer.leader_epoch, high_watermark)
            self._seen = (max(self._seen[0], answer.leader_epoch), max(self._seen[1], high_watermark))
