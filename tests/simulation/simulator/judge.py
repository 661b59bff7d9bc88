"""Possible violations of a run: invariants as named classes, and assertions of the code.

The judge of each suite defines its invariants, sees every change to the store and every step of the brokers, and raises
the violated invariant.
"""

from __future__ import annotations

from collections.abc import Callable


class Violation(Exception):
    """A violated invariant."""


class EpochsRise(Violation):
    """An epoch decreased, or the leader changed without a higher leader epoch."""


class Liveness(Violation):
    """The cluster is still not at rest some time after the faults have ended."""


class CodeFails(Violation):
    """The code under test failed one of its own assertions."""


BUGS = (AssertionError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError)
"""Errors of the code, which count as violations."""


def violation_of(run: Callable[[], None]) -> Violation | None:
    """Run a world, and return its violation; an error of the code is also a violation."""
    try:
        run()
    except Violation as found:
        return found
    except BUGS as error:
        violation = CodeFails(f"{type(error).__name__}: {error}")
        violation.__cause__ = error
        return violation
    return None
