"""What a run can be wrong in: invariants as named classes, and the code's own assertions.

Each play names its invariants in a judge of its own, which sees every change of the store and every step of the
brokers, and raises the invariant that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable


class Violation(Exception):
    """An invariant does not hold."""


class EpochsRise(Violation):
    """An epoch went back, or a leader epoch changed its leader without growing."""


class Liveness(Violation):
    """The faults have stopped, and the cluster does not come to rest."""


class CodeFails(Violation):
    """A machine broke one of its own assertions."""


BUGS = (AssertionError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError)
"""Errors of the code, which count as violations."""


def violation_of(run: Callable[[], None]) -> Violation | None:
    """Run a world; return what was wrong with it, errors of the code included."""
    try:
        run()
    except Violation as found:
        return found
    except BUGS as error:
        violation = CodeFails(f"{type(error).__name__}: {error}")
        violation.__cause__ = error
        return violation
    return None
