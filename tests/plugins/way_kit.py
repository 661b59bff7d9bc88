"""Traces for the ways in docs/explanation/rooms.md: the modules whose functions run during an operation."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

import checkout

PACKAGES = {
    "api": "api/fairlead_api",
    "broker": "broker/fairlead_broker",
    "client": "client/fairlead",
    "operator": "operator/fairlead_operator",
}
CALLS = 5


class Trace:
    """Modules of the packages in which a function was called while the trace was on.

    Modules have the names that docs/explanation/rooms.md uses. With `caller`, only modules of this package, and of the
    contract that it calls, are recorded.
    """

    def __init__(self, left_out: Collection[str], caller: str | None = None) -> None:
        self._left_out = frozenset(left_out)
        self._caller = caller
        self._on = False
        self._modules: set[str] = set()
        self._module_of: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call, as the profile function of every thread."""
        if self._on and event == "call":
            module = self._named(frame)
            if (
                module is not None
                and frame.f_code.co_name != "<module>"
                and self._caller in {None, self._package(frame)}
            ):
                self._modules.add(module)

    def _named(self, frame: FrameType) -> str | None:
        name = frame.f_code.co_filename
        if name not in self._module_of:
            local = name.removeprefix(f"{checkout.ROOT}/")
            found = (
                f"{package}/{local.removeprefix(f'{folder}/')}"
                for package, folder in PACKAGES.items()
                if local.startswith(f"{folder}/")
            )
            self._module_of[name] = next(found, None)
        return self._module_of[name]

    def _package(self, frame: FrameType) -> str | None:
        """Return the package of a call; for a call of the contract, the package that called the contract."""
        caller: FrameType | None = frame
        while caller is not None:
            module = self._named(caller)
            if module is not None and not module.startswith("api/"):
                return module.partition("/")[0]
            caller = caller.f_back
        return None

    async def of(self, call: Callable[[], Awaitable[None]]) -> set[str]:
        """Return the modules through which each of several calls passes, without periodic work."""
        ways = []
        for _ in range(CALLS):
            self._modules = set()
            self._on = True
            await call()
            self._on = False
            ways.append(self._modules - self._left_out)
        return set.intersection(*ways)


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Trace this thread and every thread that starts inside the block."""
    before = sys.getprofile()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def listed(way: str) -> list[str]:
    """Return the modules that the page lists under a heading, in their order."""
    page = (checkout.ROOT / "docs/explanation/rooms.md").read_text()
    section = re.split(r"^### ", page, flags=re.MULTILINE)
    [text] = [each for each in section if each.startswith(way)]
    return re.findall(rf"^\d+\. `((?:{'|'.join(PACKAGES)})/[\w/]+\.py)`", text, re.MULTILINE)
