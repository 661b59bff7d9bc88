"""What is wrong with a simulated world, if anything."""

from __future__ import annotations

from collections.abc import Callable

from simulator.judge import CodeFails, Violation


def violation_of(life: Callable[[], None]) -> Violation | None:
    """Live a world through; return what was wrong with it, errors of the code included."""
    try:
        life()
    except Violation as found:
        return found
    except (
        AssertionError,
        AttributeError,
        LookupError,
        RuntimeError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        violation = CodeFails(f"{type(error).__name__}: {error}")
        violation.__cause__ = error
        return violation
    return None
