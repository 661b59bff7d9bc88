"""Limit on the number of refused tokens from one address (rule A6). The module reads no clock: the time is an argument.

Each address may send `BURST` refused tokens at once, and then `FAILURES_PER_SECOND` a second. Above this limit, tokens
that are not in the broker's cache are refused without verification, so that guessing costs the broker little. Verified
tokens in the cache are still accepted from such an address.
"""

from __future__ import annotations

import ipaddress
from typing import Final

FAILURES_PER_SECOND: Final = 20.0
BURST: Final = 50.0
ADDRESSES_MAX: Final = 4096
"""Maximum number of addresses whose failures are counted. Above this number, the address with the oldest last failure
is dropped.
"""
IPV4_PREFIX: Final = "::ffff:"
"""Prefix of the IPv6 form of an IPv4 address."""
NETWORK_BITS: Final = 64
"""Number of leading bits that identify a client with IPv6, because one client usually has a whole network of this size.
"""


class FailureBudget:
    """Failure count of each address. A count decreases over time."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float]] = {}

    def wait_seconds(self, address: str, now: float) -> float:
        """Return the seconds until a token from this address is verified again, or 0 if it is verified now."""
        return max(0.0, (self._level(network_of(address), now) - BURST) / FAILURES_PER_SECOND)

    def fail(self, address: str, now: float) -> None:
        """Count a refused token."""
        key = network_of(address)
        level = self._level(key, now) + 1.0
        self._failures.pop(key, None)
        self._failures[key] = level, now
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]

    def _level(self, key: str, now: float) -> float:
        level, at = self._failures.get(key, (0.0, now))
        return max(0.0, level - (now - at) * FAILURES_PER_SECOND)


def network_of(address: str) -> str:
    """Return the network of an IPv6 address, or the address itself, even if it is an IPv4 address in IPv6 form."""
    if ":" not in address or address.startswith(IPV4_PREFIX):
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], NETWORK_BITS), strict=False))
    except ValueError:
        return address
