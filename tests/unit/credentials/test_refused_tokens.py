"""The cache of refused tokens, limited in time and size (rule A5)."""

from __future__ import annotations

from fairlead_broker.credentials.bearer import Refused
from fairlead_broker.credentials.refused_tokens import REFUSED_MAX, REMEMBERED_SECONDS, RefusedTokens


def test_a_refusal_is_remembered_for_a_time() -> None:
    """The reason for a refusal is cached for a limited time, which starts again with each refusal of the token."""
    refused = RefusedTokens()
    refused.add(b"a", Refused.EXPIRED, 0.0)
    refused.add(b"b", Refused.EXPIRED, 0.0)
    refused.add(b"b", Refused.REFUSED, 5.0)

    assert refused.find(b"a", REMEMBERED_SECONDS - 0.1) is Refused.EXPIRED
    assert refused.find(b"a", REMEMBERED_SECONDS) is None
    assert refused.find(b"b", REMEMBERED_SECONDS) is Refused.REFUSED
    assert refused.find(b"c", 0.0) is None


def test_the_memory_is_bounded() -> None:
    """A full cache drops the oldest refusals."""
    refused = RefusedTokens()
    for number in range(3 * REFUSED_MAX):
        refused.add(b"%d" % number, Refused.REFUSED, 0.0)
    kept = [n for n in range(3 * REFUSED_MAX) if refused.find(b"%d" % n, 0.0) is not None]

    assert kept == list(range(2 * REFUSED_MAX, 3 * REFUSED_MAX))
