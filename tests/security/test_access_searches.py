"""Short searches for incorrect decisions and accepted forgeries (V4, V5); `access_searches.py` runs longer ones."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from access_searches import SEARCHES
from fairlead_api.access_needs import Kind


@pytest.mark.parametrize(
    ("search", "count", "outcomes"),
    [
        ("rule-sets", 1000, {"allowed", "denied", "allowed prefixes", "internal names", *Kind}),
        ("acl-texts", 2000, {"accepted", "invalid_principal", "invalid_acl", "allowed", "denied"}),
        ("api-tokens", 5000, {"refused", "malformed", "the same token"}),
        ("signed-tokens", 1500, {"refused", "another form", "the same token"}),
        ("headers", 1000, {"401"}),
        ("certificates", 300, {"refused", "accepted"}),
    ],
)
def test_a_search_finds_nothing(search: str, count: int, outcomes: set[str]) -> None:
    """Decisions agree with a naive evaluation, mutated tokens are refused, accepted certificates are usable."""
    counts = Counter[str]()
    found = SEARCHES[search](count, random.Random(1), counts)

    assert found is None
    assert outcomes <= counts.keys()
