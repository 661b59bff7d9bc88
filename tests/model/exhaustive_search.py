"""Breadth-first search of all states of a model, for invariants and for states from which nothing leads to an end."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S")


@dataclass(frozen=True)
class Step(Generic[S]):
    """A step from one state to another."""

    label: str
    state: S
    violation: str | None = None
    is_fault: bool = False
    """Whether the step is a fault or new work, which may not be needed to reach an end."""


class Model(Protocol[S]):
    """A model: its first state, its steps, and its ends."""

    def initial(self) -> S:
        """Return the first state."""

    def steps(self, state: S) -> Iterable[Step[S]]:
        """Return the steps from a state."""

    def checked(self, state: S) -> tuple[S, str | None]:
        """Return a new state including the records that readers see, and the violated invariant, if any."""

    def is_end(self, state: S) -> bool:
        """Return whether nothing is left to do in a state."""


@dataclass(frozen=True)
class Report:
    """Result of a search."""

    states: int
    steps: int
    depth: int
    is_complete: bool
    """Whether every state was reached; false after a violation or a time limit."""
    violation: str | None
    trace: Sequence[str]
    """Labels of the steps to the violation."""


@dataclass
class _Reached(Generic[S]):
    """States in the order in which they were reached, each with the step that reached it first."""

    states: list[S]
    parents: list[tuple[int, str]]
    depths: array[int]

    def trace(self, at: int) -> list[str]:
        labels = []
        while at > 0:
            at, label = self.parents[at]
            labels.append(label)
        return labels[::-1]


def search(model: Model[S], seconds_max: float, hanging: str | None = None) -> Report:
    """Search all states. `hanging` is reported for a state from which no steps without faults lead to an end."""
    deadline = time.monotonic() + seconds_max
    first = model.initial()
    reached, index = _Reached([first], [(-1, "")], array("i", [0])), {first: 0}
    sources, targets, head, steps = array("l"), array("l"), 0, 0

    def report(*, is_complete: bool = False, violation: str | None = None, at: int = 0) -> Report:
        states, depth = len(reached.states), reached.depths[-1]
        return Report(states, steps, depth, is_complete, violation, reached.trace(at))

    while head < len(reached.states):
        if head % 256 == 0 and time.monotonic() > deadline:
            return report()
        for step in model.steps(reached.states[head]):
            steps += 1
            state, violation = step.state, step.violation
            at = index.get(state)
            if at is None and violation is None:
                state, violation = model.checked(state)
                at = index.get(state)
            if at is None:
                at = index[state] = len(reached.states)
                reached.states.append(state)
                reached.parents.append((head, step.label))
                reached.depths.append(reached.depths[head] + 1)
            if violation is not None:
                return report(violation=violation, at=at)
            if hanging is not None and not step.is_fault:
                sources.append(head)
                targets.append(at)
        head += 1
    stuck = None if hanging is None else _stuck(reached.states, sources, targets, model.is_end)
    if stuck is not None:
        return report(is_complete=True, violation=hanging, at=stuck)
    return report(is_complete=True)


def _stuck(
    states: Sequence[S], sources: Sequence[int], targets: Sequence[int], is_end: Callable[[S], bool]
) -> int | None:
    """Return the first state from which no step leads to an end."""
    before: list[list[int]] = [[] for _ in states]
    for source, target in zip(sources, targets, strict=True):
        before[target].append(source)
    good = bytearray(len(states))
    waiting = [at for at, state in enumerate(states) if is_end(state)]
    for at in waiting:
        good[at] = 1
    while waiting:
        for at in before[waiting.pop()]:
            if not good[at]:
                good[at] = 1
                waiting.append(at)
    return next((at for at, is_good in enumerate(good) if not is_good), None)
