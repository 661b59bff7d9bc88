"""Operations that `enforce` mode would refuse, counted in `observe` mode (rule Z3)."""

from __future__ import annotations

from fairlead_broker.access.would_be_denied import ENTRIES_MAX, DeniedOperation, WouldBeDenied


def test_the_last_distinct_operations_are_kept_with_counts() -> None:
    """Repeated operations are counted, the latest come first, and the least recently counted operation is dropped."""
    operations = [DeniedOperation("user:ann", "read", f"topic:{number}") for number in range(ENTRIES_MAX + 1)]
    seen = WouldBeDenied()
    for operation in (*operations[:-1], operations[0], operations[-1]):
        seen.add(operation)

    entries = seen.entries()

    assert len(entries) == ENTRIES_MAX
    assert entries[:2] == [(operations[-1], 1), (operations[0], 2)]
    assert operations[1] not in dict(entries)
