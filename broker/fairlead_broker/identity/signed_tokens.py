"""Callers identified by signed tokens (rules A15 to A18), and the limit on signature checks (rule A6).

The runtime's `security_view` calls this module for tokens that are not in its cache. If the key of a token is unknown,
a fetch of the issuer's keys may find the key: `CallerPending` contains the future that the request must await before
the token is verified again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from fairlead_api.problems import ProblemError
from fairlead_broker.access.caller import Caller
from fairlead_broker.clock import Clock
from fairlead_broker.credentials.bearer import Refused, too_many_failures, unauthenticated
from fairlead_broker.credentials.claims import caller_of, unverified
from fairlead_broker.identity.issuer_keys import IssuerKeys

CHECKS_PER_SECOND_MAX: Final = 1000
UNKNOWN_ISSUER: Final = "none"


class CallerPending(Exception):
    """Raised if a token can be verified only after a wait."""

    def __init__(self, wait: Callable[[], asyncio.Future[None]]) -> None:
        super().__init__("the token can be verified only after a wait")
        self.wait = wait
        """Function that returns the future that the request awaits. The wait may be cancelled."""


class KeyUnknown(ProblemError):
    """Refusal of a token whose key is unknown. A later fetch may find the key."""

    def __init__(self) -> None:
        refused = unauthenticated(Refused.REFUSED)
        super().__init__(refused.code, refused.detail, data=refused.data)


class SignedTokens:
    """Verifier for tokens signed by a broker's issuers."""

    def __init__(
        self,
        issuers: Mapping[str, IssuerKeys],
        wanted: Callable[[str, str | None], asyncio.Task[None] | None],
        clock: Clock,
    ) -> None:
        """`issuers`: keys by the name of the issuer. `wanted` returns the task of a fetch that may find a key."""
        self.issuers = issuers
        self._by_claim = {keys.rules.issuer: keys for keys in issuers.values()}
        self._wanted = wanted
        self._clock = clock
        self._second = 0
        self._checks = 0

    @property
    def revision(self) -> int:
        """Number that changes when the keys of an issuer change."""
        return sum(keys.revision for keys in self.issuers.values())

    def holds(self, caller: Caller) -> bool:
        """Return whether the key that verified a caller's token is still one of the issuer's keys."""
        keys = self.issuers.get(caller.issuer or "")
        return keys is not None and any(key.sha256 == caller.key_sha256 for key in keys.keys)

    def source_of(self, text: str) -> str:
        """Return the name of the issuer that a token claims, or `none` for an unknown issuer.

        Metrics use the name as a label.
        """
        try:
            keys = self._by_claim.get(unverified(text).issuer)
        except Exception:  # noqa: BLE001 - a token that cannot be read has no issuer
            keys = None
        return UNKNOWN_ISSUER if keys is None else keys.rules.name

    def caller(self, text: str, valid_after_us: int, *, waited: bool) -> Caller:
        """Return the caller of a token. Raises `unauthenticated`, `throttled`, or `CallerPending` if a wait is needed.

        `waited`: whether the request has already waited. A request waits at most once.
        """
        claimed = unverified(text)
        keys = self._by_claim.get(claimed.issuer)
        if keys is None or claimed.algorithm not in keys.rules.algorithms:
            raise unauthenticated(Refused.REFUSED)
        now_us = self._clock.now_us()
        key = keys.find(claimed.key_id, now_us)
        if key is None:
            self._wait_for_key(keys, claimed.key_id, waited=waited)
            raise KeyUnknown
        if claimed.algorithm not in key.algorithms:
            raise unauthenticated(Refused.REFUSED)
        self._pace(waited=waited)
        payload = key.payload(text, claimed.algorithm)
        if payload is None:
            raise unauthenticated(Refused.REFUSED)
        caller = caller_of(keys.rules, payload, key.sha256, now_us, valid_after_us)
        return replace(caller, key_id=key.key_id)

    def _wait_for_key(self, keys: IssuerKeys, key_id: str | None, *, waited: bool) -> None:
        if waited:
            # After a failed fetch, the issuer may have the key, and another fetch may find it.
            if keys.failing is None:
                keys.note_unknown(key_id, self._clock.monotonic())
            return
        fetching = self._wanted(keys.rules.name, key_id)
        if fetching is not None:
            raise CallerPending(lambda: asyncio.shield(fetching))

    def _pace(self, *, waited: bool) -> None:
        """Limit signature checks per second. A request above the limit waits once, until the next second begins."""
        now = self._clock.monotonic()
        if int(now) != self._second:
            self._second, self._checks = int(now), 0
        if self._checks < CHECKS_PER_SECOND_MAX:
            self._checks += 1
            return
        rest = self._second + 1 - now
        if waited:
            raise too_many_failures(rest)
        raise CallerPending(lambda: asyncio.ensure_future(asyncio.sleep(rest)))  # noqa: TID251 - see the docstring
