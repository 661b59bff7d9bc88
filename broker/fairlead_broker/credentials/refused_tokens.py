"""Memory of refused tokens (rule A5). The time is an argument.

A client with a wrong token repeats it. The memory answers the repetitions without another check of a signature, and
without effect on the budget of the address, so that other clients behind the same address can still present a token for
the first time. What may change a refusal clears the memory.
"""

from __future__ import annotations

from typing import Final

from fairlead_broker.credentials.bearer import Refused

REMEMBERED_SECONDS: Final = 10.0
REFUSED_MAX: Final = 4096
"""Maximum number of remembered tokens, about 1 MB; the token that was refused first is dropped."""


class RefusedTokens:
    """Refusals of the last seconds by the digest of the token."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[bytes, tuple[Refused, float]] = {}

    def find(self, digest: bytes, now: float) -> Refused | None:
        """Return the reason of a remembered refusal."""
        found = self._refused.get(digest)
        return None if found is None or now >= found[1] else found[0]

    def add(self, digest: bytes, reason: Refused, now: float) -> None:
        """Remember a refusal."""
        self._refused.pop(digest, None)
        self._refused[digest] = reason, now + REMEMBERED_SECONDS
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
