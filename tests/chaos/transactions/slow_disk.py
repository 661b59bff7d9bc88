"""Program that starts a broker whose disk is slow: `python slow_disk.py 0.3 fairlead broker start ...`.

Each write of records and each sync takes up to the given number of seconds longer, at random.
"""

from __future__ import annotations

import os
import random
import runpy
import sys
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CALLS: Final = ("pwritev", "fdatasync")
"""Functions of `os` through which a log writes and syncs its files."""


def delayed(call: Callable[P, T], seconds_max: float) -> Callable[P, T]:
    """Return a function that waits before the call."""
    chance = random.Random()

    def late(*arguments: P.args, **named: P.kwargs) -> T:
        time.sleep(chance.uniform(0, seconds_max))  # noqa: TID251 - the delay is the fault
        return call(*arguments, **named)

    return late


def main() -> None:
    """Delay the calls, and run the program that the command line names."""
    _, seconds_max, program, *arguments = sys.argv
    for name in CALLS:
        setattr(os, name, delayed(getattr(os, name), float(seconds_max)))
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
