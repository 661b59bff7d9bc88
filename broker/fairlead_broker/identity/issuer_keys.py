"""Keys of one issuer, the times at which they are fetched again, and their expiry (rule A17).

Times are arguments. `refreshing` fetches the keys, and `signed_tokens` looks them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fairlead_broker.credentials.claims import IssuerRules
from fairlead_broker.identity.jose import VerificationKey

REFRESH_SECONDS: Final = 600.0
ATTEMPT_SECONDS_MIN: Final = 10.0
"""Minimum seconds between two fetches that are caused by unknown key ids."""
UNKNOWN_SECONDS: Final = 60.0
"""Number of seconds for which an unknown key id causes no further fetch."""
UNKNOWN_MAX: Final = 1000
HELD_SECONDS: Final = 86_400.0
"""Number of seconds that keys are valid after the last successful fetch."""


class IssuerKeys:
    """Keys of an issuer."""

    def __init__(self, rules: IssuerRules) -> None:
        self.rules = rules
        self.keys: Sequence[VerificationKey] = ()
        self.fetched_us: int | None = None
        """Wall-clock time of the last successful fetch in microseconds, or None before the first."""
        self.failing: str | None = None
        """Reason why the last fetch failed, or None if it succeeded."""
        self.revision = 0
        """Number that increases when the keys change, so that cached callers and refusals are dropped."""
        self._attempted_at: float | None = None
        self._unknown: dict[str | None, float] = {}

    def find(self, key_id: str | None, now_us: int) -> VerificationKey | None:
        """Return the key with an id, or the only key for a token without an id."""
        self._end_old(now_us)
        if key_id is None:
            return self.keys[0] if len(self.keys) == 1 else None
        return next((key for key in self.keys if key.key_id == key_id), None)

    def wants_fetch(self, key_id: str | None, now: float) -> bool:
        """Return whether an unknown key id is a reason to fetch the keys now."""
        if now < self._unknown.get(key_id, -1.0):
            return False
        return self._attempted_at is None or now >= self._attempted_at + ATTEMPT_SECONDS_MIN

    def attempt(self, now: float) -> None:
        """Record the start of a fetch."""
        self._attempted_at = now

    def note_unknown(self, key_id: str | None, now: float) -> None:
        """Record that the keys that were just fetched do not include a key id."""
        while len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[key_id] = now + UNKNOWN_SECONDS

    def replace(self, keys: Sequence[VerificationKey], fetched_us: int) -> bool:
        """Replace the keys with fetched keys, and return whether they differ from the previous keys."""
        before, after = [key.public for key in self.keys], [key.public for key in keys]
        self.fetched_us, self.failing = fetched_us, None
        if before == after:
            return False
        self.keys = tuple(keys)
        self._unknown.clear()
        self.revision += 1
        return True

    def fail(self, reason: str) -> None:
        """Record a failed fetch. The previous keys stay valid after a failed fetch."""
        self.failing = reason

    def _end_old(self, now_us: int) -> None:
        if self.keys and self.fetched_us is not None and now_us > self.fetched_us + HELD_SECONDS * 1e6:
            self.keys = ()
            self.revision += 1
