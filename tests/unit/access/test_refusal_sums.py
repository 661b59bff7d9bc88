"""Equal refusals are summed, the kinds of refusals are bounded, and every refusal is counted (rule U2)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.access import refusal_sums
from fairlead_broker.access.refusal_sums import RefusalKind, RefusalSums

CALLERS = ("user:ann", "user:bob", "127.0.0.1")


def kind_of(caller: int, topic: int) -> RefusalKind:
    """Return the kind of a refused read."""
    return RefusalKind("denied", CALLERS[caller], "read", f"topic:{topic}")


@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 4)), st.none()), max_size=80),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_reports_and_sums_count_every_refusal(
    steps: list[tuple[int, int] | None], kinds_max: int, caller_kinds_max: int
) -> None:
    """Immediate reports and sums together count each refusal once, and the number of kinds has two bounds.

    Refusals of further kinds are counted together, for each caller or for all callers.
    """
    sums: RefusalSums[tuple[int, int]] = RefusalSums()
    counted: Counter[str] = Counter()
    reported, refused = 0, Counter(CALLERS[step[0]] for step in steps if step is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refusal_sums, "KINDS_MAX", kinds_max)
        patch.setattr(refusal_sums, "CALLER_KINDS_MAX", caller_kinds_max)
        for step in (*steps, None):
            if step is not None:
                if sums.add(kind_of(*step), step):
                    counted[CALLERS[step[0]]] += 1
                    reported += 1
                continue
            # Beyond each bound, there is one more kind for the other refusals.
            assert reported <= min(kinds_max + 1, len(CALLERS) * (caller_kinds_max + 1) + 1)
            reported = 0
            found = sums.take()
            assert all(kind.is_rest or kind == kind_of(*last) for kind, last, _ in found)
            for kind, _, count in found:
                counted[kind.caller] += count

    assert counted.total() == refused.total()
    assert all(counted[caller] <= refused[caller] for caller in CALLERS)


def test_a_caller_that_varies_the_names_is_reported_in_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a caller with too many kinds of refusals, the other refusals have one sum; other callers are not affected."""
    monkeypatch.setattr(refusal_sums, "CALLER_KINDS_MAX", 2)
    sums: RefusalSums[int] = RefusalSums()
    at_once = [
        sums.add(RefusalKind("denied", "user:ann", "read", f"topic:{number}"), number) for number in range(9)
    ]
    other = sums.add(RefusalKind("denied", "user:bob", "read", "topic:1"), 100)

    assert (at_once, other) == ([True] * 3 + [False] * 6, True)
    assert sums.take() == [(RefusalKind("denied", "user:ann", is_rest=True), 8, 6)]
    assert sums.take() == []
    assert sums.add(RefusalKind("denied", "user:ann", "read", "topic:1"), 1)


def test_a_full_table_has_one_sum_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the table is full, the refusals of further callers have one sum without a caller."""
    monkeypatch.setattr(refusal_sums, "KINDS_MAX", 2)
    sums: RefusalSums[int] = RefusalSums()
    for number in range(6):
        sums.add(RefusalKind("denied", f"user:u{number}", "read", "topic:t"), number)

    assert sums.take() == [(RefusalKind("denied", is_rest=True), 5, 3)]
