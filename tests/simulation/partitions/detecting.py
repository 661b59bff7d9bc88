"""Each broker watches the processes of the other brokers with a detector that may err in both directions.

The decision is production code (`controller.failure_detector`); this module is a twin of `controlling.failure_watch`.
The port of a running broker may refuse connections for a while, connections may break without a reason, and the port of
a killed broker may be silent, like the port of a lost machine.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.controller.failure_detector import PROBE_SECONDS_MAX, FailureDetector
from fairlead_broker.registry.records import BrokerState
from partitions import guards
from simulator.broker import own_registration
from simulator.store import Transaction, broker_key

if TYPE_CHECKING:
    from partitions.broker import Broker
    from partitions.world import World

LOOK_SECONDS = 0.2
"""Time between two checks of an open connection."""


class Answer(Enum):
    """Outcome of an attempt to connect."""

    ACCEPTED = auto()
    REFUSED = auto()
    SILENT = auto()


class Ports:
    """Answers of the ports of all brokers, including false answers."""

    def __init__(self, world: World) -> None:
        """Start without false answers."""
        self._world = world
        self._until: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._silent_until: dict[int, float] = {}
        self._healed = False
        self.breaks: Counter[int] = Counter()
        """Number of times that the connections to a broker broke without a reason."""

    def refuse(self, broker: int, seconds: float) -> None:
        """Let the port of a running broker refuse connections, which also breaks its connections.

        Refusals in quick succession count as one period, because a detector may see only some of them.
        """
        if self._healed:
            return
        now = self._world.now
        if broker not in self._since or now >= self._until[broker] + PROBE_SECONDS_MAX:
            self._since[broker] = now
        self._until[broker] = max(self._until.get(broker, 0.0), now + seconds)
        self.breaks[broker] += 1

    def silence(self, broker: int, seconds: float) -> None:
        """Make the port of a broker silent while the broker is not running."""
        self._silent_until[broker] = self._world.now + seconds

    def heal(self) -> None:
        """End all false answers."""
        self._healed = True
        self._until.clear()
        self._silent_until.clear()

    def refusing_seconds(self, broker: int) -> float | None:
        """Return how long the port of a running broker has refused connections, or None if it accepts them."""
        if self._world.now >= self._until.get(broker, 0.0):
            return None
        return self._world.now - self._since[broker]

    def answer(self, source: int, broker: Broker) -> Answer:
        """Return the outcome of a broker's attempt to connect to another broker."""
        cut, number = self._world.network.cut, broker.number
        if (source, number) in cut or (number, source) in cut:
            return Answer.SILENT
        if not broker.alive and self._world.now < self._silent_until.get(number, 0.0):
            return Answer.SILENT
        refuses = not broker.listens or self.refusing_seconds(number) is not None
        return Answer.REFUSED if refuses else Answer.ACCEPTED


class Detecting:
    """The part of a broker's process that ends the leases of ended processes."""

    def __init__(self, broker: Broker) -> None:
        """Start without a connection."""
        self._broker = broker
        self._detector = FailureDetector()
        self._watched: dict[int, int] = {}

    def look(self) -> None:
        """Watch the incarnations in the mirror."""
        broker = self._broker
        if not broker.world.plan.alarmed:
            return
        for number, item in broker.mirror.brokers.items():
            if number == broker.number:
                continue
            epoch, process = BrokerEpoch(item.create_revision), item.value.peer_secret_hash
            self._detector.registered(BrokerId(number), epoch, process, broker.world.now)
            if self._is_watched(number, epoch) and self._watched.get(number) != epoch:
                self._watched[number] = epoch
                self._attempt(number, epoch)

    def _is_watched(self, number: int, epoch: int) -> bool:
        item = self._broker.mirror.brokers.get(number)
        return (
            item is not None
            and item.create_revision == epoch
            and item.value.state is not BrokerState.STOPPING
        )

    def _attempt(self, number: int, epoch: int) -> None:
        self._broker.after(self._broker.world.network.delay(), self._answered, number, epoch)

    def _answered(self, number: int, epoch: int) -> None:
        broker, detector, key = self._broker, self._detector, BrokerId(number)
        if not self._is_watched(number, epoch):
            return
        world = broker.world
        other = world.brokers[number]
        answer = world.ports.answer(broker.number, other)
        if answer is Answer.ACCEPTED:
            detector.connected(key, world.now)
            broker.after(LOOK_SECONDS, self._hold, number, epoch, other.life, world.ports.breaks[number])
            return
        pause = detector.refused(key) if answer is Answer.REFUSED else detector.unreachable(key)
        if answer is Answer.REFUSED and detector.has_ended(key, world.now):
            self._end(number, epoch)
        broker.after(pause, self._attempt, number, epoch)

    def _hold(self, number: int, epoch: int, life: int, breaks: int) -> None:
        broker, world = self._broker, self._broker.world
        if not self._is_watched(number, epoch):
            return
        if (world.brokers[number].life, world.ports.breaks[number]) == (life, breaks):
            broker.after(LOOK_SECONDS, self._hold, number, epoch, life, breaks)
        else:
            broker.after(self._detector.closed(BrokerId(number), world.now), self._attempt, number, epoch)

    def _end(self, number: int, epoch: int) -> None:
        broker, world = self._broker, self._broker.world
        standing = broker.mirror.controller
        if standing is None or standing.value.broker not in (broker.number, number):
            return
        if not self._detector.spend(world.now):
            return
        world.judge.suspects(broker, number, epoch)
        store, key = world.store, broker_key(number)
        compares = (
            *guards.controller_term(standing.create_revision),
            *own_registration(broker.number, broker.epoch),
            *guards.ended_incarnation(number, epoch),
        )

        def find() -> tuple[int, ...]:
            if not store.transact(Transaction(compares))[0]:
                return ()
            return tuple(lease for lease, held in store.leases.items() if key in held.keys)

        broker.ask_store(find, self._found, number, epoch)

    def _found(self, leases: tuple[int, ...] | None, number: int, epoch: int) -> None:
        broker, world = self._broker, self._broker.world

        def revoke(lease: int) -> bool:
            world.judge.ends(broker, number, epoch, lease)
            world.store.revoke(lease)
            return True

        for lease in leases or ():
            broker.ask_store(lambda ended=lease: revoke(ended), lambda _: None)
