"""Cache of refused tokens of every kind: API tokens and signed tokens (rule A5).

The module reads no clock: the time is an argument.

A client with a wrong token usually sends it repeatedly. The cache answers repeated tokens without verifying the
signature again and without charging the failure budget of the address, so that other clients with the same address can
still present a token for the first time. Any change that might affect a refusal clears the cache.
"""

from __future__ import annotations

from typing import Final

from fairlead_broker.credentials.bearer import Refused

REMEMBERED_SECONDS: Final = 10.0
REFUSED_MAX: Final = 4096
"""Maximum number of cached tokens, which take about 1 MB. Above this number, the token that was refused first is
dropped.
"""


class RefusedTokens:
    """Refusals of the last `REMEMBERED_SECONDS`, keyed by the digest of the token."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[bytes, tuple[Refused, float]] = {}

    def find(self, digest: bytes, now: float) -> Refused | None:
        """Return the reason of a cached refusal, or None."""
        found = self._refused.get(digest)
        return None if found is None or now >= found[1] else found[0]

    def add(self, digest: bytes, reason: Refused, now: float) -> None:
        """Add a refusal to the cache."""
        self._refused.pop(digest, None)
        self._refused[digest] = reason, now + REMEMBERED_SECONDS
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
