"""Bug switches: each drops one rule, as an error in the code would, and the simulator must find it.

A switch replaces named functions and methods while it is open; production code does not refer to it. Each suite lists
its switches in the order of the rules, and docs/explanation/simulation.md states the number of seeds until each is
found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any, TypeAlias

Replacement: TypeAlias = tuple[Any, str, object]
"""A module or class, the name of its attribute, and the replacement."""
PLACES = ("fairlead_broker.", "simulator.", "partitions.", "groups.", "classic.", "transactional.", "linked.")
"""Packages in which a module's function is also replaced where it was imported."""


class Switch:
    """A rule, and the replacements that drop it."""

    def __init__(self, name: str, rule: str, *replacements: Replacement, shell: bool = False) -> None:
        """Create the switch of a rule; `shell` marks a rule of asynchronous code that the simulator replaces."""
        self.name = name
        self.rule = rule
        self.shell = shell
        self._replacements = replacements

    def drop(self) -> AbstractContextManager[None]:
        """Open the switch."""
        return replaced(*self._replacements)


@contextmanager
def replaced(*replacements: Replacement) -> Iterator[None]:
    """Replace attributes while the context is open."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            for place in _importers(owner, name) if isinstance(owner, ModuleType) else (owner,):
                if name in place.__dict__:
                    stack.callback(setattr, place, name, place.__dict__[name])
                else:
                    stack.callback(delattr, place, name)  # uncovers the inherited attribute
                setattr(place, name, value)
        yield


def _importers(owner: ModuleType, name: str) -> list[ModuleType]:
    """Return the modules with the name to replace: for a function of `owner`, also all modules that import it."""
    original = owner.__dict__[name]
    if original.__module__ != owner.__name__:
        return [owner]
    return [
        module
        for key, module in sorted(sys.modules.items())
        if key.startswith(PLACES) and not key.endswith(".switches") and module.__dict__.get(name) is original
    ]
