"""The common part of the worlds of all suites: a seed becomes a world with a storm of faults, a rest and a verdict.

A suite adds its brokers, clients, judge and faults; the rules in them are production code. The world uses no clock,
loop or file, and randomness comes from the seed alone, so a run is a pure function of its seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from simulator.broker import Broker
from simulator.judge import Liveness, violation_of
from simulator.network import Network, Weather
from simulator.schedule import Schedule
from simulator.store import Store
from simulator.storm import Storm

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class Verdict:
    """Result of a run."""

    seed: int
    violation: Exception | None = None
    digest: str = ""
    """Digest of the run, which is equal for equal runs."""
    seconds: float = 0.0
    """Simulated time."""
    happened: int = 0
    """Number of actions that ran."""
    counts: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)


class World:
    """All parts of one run."""

    START_SECONDS: ClassVar[float]
    """Time in which the brokers register and the first records are written."""
    REST_SECONDS: ClassVar[float]
    """Maximum time until the cluster must be at rest, for suites that do not override `rest_seconds`."""
    LIVENESS: ClassVar[type[Liveness]] = Liveness
    """Violation of a cluster that is not at rest in time."""
    plan: Any
    judge: Any
    store: Store
    faults: Storm
    brokers: dict[int, Any]

    def __init__(self, seed: int, draw: Callable[[Random], Any], plan: Any, *, traced: bool) -> None:
        """Create the random world of a seed; a given plan replaces the random plan."""
        self.seed = seed
        self.schedule = Schedule(seed)
        drawn = draw(self.schedule.rng)
        self.plan = drawn if plan is None else plan
        self.trace: list[str] | None = [] if traced else None
        self.traffic = True
        """Whether clients still start requests, which they do until the check that the cluster is at rest."""
        self.network = Network(self.schedule, self.plan.weather)
        self._leases = 0

    @property
    def now(self) -> float:
        """Seconds since the start of the world."""
        return self.schedule.now

    def next_lease(self) -> int:
        """Return a new lease id."""
        self._leases += 1
        return self._leases

    def note(self, what: str, *details: Any) -> None:
        """Append a line to the trace if there is one."""
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f} {what}: {' '.join(str(each) for each in details)}")

    # -- methods of a suite

    def create(self) -> None:
        """Write the first records of the suite while the brokers register."""
        raise NotImplementedError

    def populate(self) -> None:
        """Start the clients of the suite."""
        raise NotImplementedError

    def unrest(self) -> str | None:
        """Return the first reason why the cluster is not at rest, or None if the cluster is at rest."""
        raise NotImplementedError

    @property
    def rest_seconds(self) -> float:
        """Maximum time from the last fault until the cluster must be at rest."""
        return self.REST_SECONDS

    def compare(self) -> None:
        """Run the checks that require a cluster at rest."""

    def fingerprint(self) -> list[Any]:
        """Return the parts of the digest other than randomness, store and counts."""
        raise NotImplementedError

    # -- the run

    def run(self) -> Verdict:
        """Run storm and rest, and return a violation as the verdict instead of raising it."""
        violation = violation_of(self._run)
        return Verdict(
            self.seed,
            violation,
            self._digest(),
            self.now,
            self.schedule.happened,
            dict(self.judge.counts),
            self.trace or [],
        )

    def _run(self) -> None:
        weather, self.network.weather = self.network.weather, Weather()
        brokers: dict[int, Broker] = self.brokers
        self.network.nodes.update(brokers)
        for broker in brokers.values():
            broker.start()
        self.create()
        self.schedule.run(self.START_SECONDS)
        self.network.weather = weather
        self.populate()
        self.faults.begin()
        self.schedule.run(self.now + self.plan.storm_seconds)
        self.note("rest")
        self.faults.stop()
        self._rest()
        self.compare()

    def _rest(self) -> None:
        """Run the world until the cluster is at rest, and raise `LIVENESS` after `rest_seconds`."""
        until = self.now + self.rest_seconds
        while True:
            self.schedule.run(self.now + LOOK_SECONDS)
            self.traffic = False
            wrong = self.unrest()
            if wrong is None:
                return
            if self.now >= until:
                raise self.LIVENESS(wrong)

    def _digest(self) -> str:
        """Return the digest of the run; the state of the random generator makes it unique."""
        text = repr(
            (
                self.now,
                self.schedule.happened,
                self.schedule.rng.getstate(),
                self.store.revision,
                self.fingerprint(),
                sorted(self.judge.counts.items()),
            )
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
