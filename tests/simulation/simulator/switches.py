"""Bug switches: each drops one rule, as an error in the code would, and the simulator has to notice.

A switch replaces named functions and methods for as long as it is open; production code knows nothing of it. Each play
names its switches in the order of the rules, and docs/explanation/simulation.md says how soon each is found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any, TypeAlias

Replacement: TypeAlias = tuple[Any, str, object]
"""A module or class, the name of its attribute, and what takes its place."""
PLACES = ("fairlead_broker.", "simulator.", "partitions.", "groups.")
"""Where a module's function is replaced under the name by which other modules have imported it."""


class Switch:
    """A rule, and what drops it."""

    def __init__(self, name: str, rule: str, *replacements: Replacement, shell: bool = False) -> None:
        """Name the rule; `shell`: the rule is one of the shells, which the simulator has in its own form."""
        self.name = name
        self.rule = rule
        self.shell = shell
        self._replacements = replacements

    def drop(self) -> AbstractContextManager[None]:
        """Open the switch."""
        return replaced(*self._replacements)


@contextmanager
def replaced(*replacements: Replacement) -> Iterator[None]:
    """Replace attributes for as long as this is open."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            for place in _importers(owner, name) if isinstance(owner, ModuleType) else (owner,):
                if name in place.__dict__:
                    stack.callback(setattr, place, name, place.__dict__[name])
                else:
                    stack.callback(delattr, place, name)  # what it hides is inherited
                setattr(place, name, value)
        yield


def _importers(owner: ModuleType, name: str) -> list[ModuleType]:
    """Return the modules in which to replace: for a function of `owner` itself, all that have imported it."""
    original = owner.__dict__[name]
    if original.__module__ != owner.__name__:
        return [owner]
    return [
        module
        for key, module in sorted(sys.modules.items())
        if key.startswith(PLACES) and not key.endswith(".switches") and module.__dict__.get(name) is original
    ]
