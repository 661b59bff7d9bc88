"""Equal refusals are summed, and every refusal is counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.access import refusal_sums
from fairlead_broker.access.refusal_sums import RefusalKind, RefusalSums


@given(st.lists(st.one_of(st.integers(0, 4), st.none()), max_size=60), st.integers(1, 5))
def test_reports_and_sums_count_every_refusal(steps: list[int | None], kinds_max: int) -> None:
    """Immediate reports and sums together count each refusal once, even with more kinds than sums (rule U2)."""
    sums: RefusalSums[int] = RefusalSums()
    counted: Counter[int] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refusal_sums, "KINDS_MAX", kinds_max)
        for step in (*steps, None):
            if step is None:
                counted.update(dict(sums.take()))
            elif sums.add(RefusalKind("denied", "user:ann", "read", f"topic:{step}"), step):
                counted[step] += 1

    assert counted == Counter(step for step in steps if step is not None)
