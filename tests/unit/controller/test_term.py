from __future__ import annotations

from typing import Any

from fairlead_broker.controller.term import portions
from fairlead_broker.registry.store_writes import CreateRevision, Relation


def test_the_guard_compares_the_create_revision_of_the_controller_key(world: Any, kit: Any) -> None:
    """A term's writes are guarded by a compare on the controller key's create revision, which differs in each term."""
    expected = CreateRevision(kit.keys.controller, Relation.EQUAL, world.term_revision)

    assert world.term.guard == expected


def test_portions_are_whole_and_in_order() -> None:
    """A list is divided into portions in order; the last portion may be shorter, and an empty list has none."""
    assert [list(portion) for portion in portions(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(portions([], 3)) == []
