from __future__ import annotations

from fairlead_broker.registry.store_writes import (
    CreateRevision,
    ModRevision,
    Relation,
    Value,
    absent,
    created_at,
    has_value,
    unchanged_since,
)


def test_guards_are_compares_for_equality() -> None:
    """A guard compares for equality: create revision 0 for an absent key, otherwise a value or revision."""
    assert absent("/k") == CreateRevision("/k", Relation.EQUAL, 0)
    assert created_at("/k", 7) == CreateRevision("/k", Relation.EQUAL, 7)
    assert unchanged_since("/k", 9) == ModRevision("/k", Relation.EQUAL, 9)
    assert has_value("/k", b"x") == Value("/k", Relation.EQUAL, b"x")
