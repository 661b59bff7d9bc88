"""Leases of an embedded store, which are kept in memory and end with the process.

Only `embedded` uses this module. The table of leases is pure: the time is an argument, and the methods return the
expired leases and the keys to be removed with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead_broker.coordination.protocol import (
    Lease,
    LeaseNotFound,
)
from fairlead_broker.registry.store_writes import (
    Delete,
    Get,
    LeaseId,
    Operation,
    Put,
)


@dataclass(slots=True)
class _Held:
    lease: Lease
    deadline: float
    keys: set[str] = field(default_factory=set)


class Leases:
    """Leases by id, and the lease of each key that has a lease."""

    __slots__ = ("_held", "_lease_of", "_life", "_made")

    def __init__(self, life: int) -> None:
        """Create the table without leases.

        `life`, the number of times that the store was opened, is part of each lease id, so that no lease id is reused.
        """
        self._held: dict[LeaseId, _Held] = {}
        self._lease_of: dict[str, LeaseId] = {}
        self._life = life
        self._made = 0

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._held

    @property
    def next_deadline(self) -> float | None:
        """Monotonic time in seconds at which the first lease expires unless it is kept alive."""
        return min((held.deadline for held in self._held.values()), default=None)

    def grant(self, ttl_seconds: int, now: float) -> Lease:
        """Grant a lease that expires at `now` (monotonic time in seconds) plus the time to live."""
        self._made += 1
        lease = Lease(LeaseId(self._life << 32 | self._made), ttl_seconds)
        self._held[lease.lease_id] = _Held(lease, now + ttl_seconds)
        return lease

    def keep_alive(self, lease_id: LeaseId, now: float) -> None:
        """Restart the time to live of a lease. Raises `LeaseNotFound`."""
        held = self._get(lease_id)
        held.deadline = now + held.lease.ttl_seconds

    def renew_all(self, now: float) -> None:
        """Restart the time to live of every lease, after a stall in which no lease could be kept alive."""
        for held in self._held.values():
            held.deadline = now + held.lease.ttl_seconds

    def due(self, now: float) -> list[LeaseId]:
        """Return the leases that were not kept alive in time."""
        return [lease_id for lease_id, held in self._held.items() if held.deadline <= now]

    def keys(self, lease_id: LeaseId) -> list[str]:
        """Return the keys that are removed when a lease ends, in ascending order. Raises `LeaseNotFound`."""
        return sorted(self._get(lease_id).keys)

    def drop(self, lease_id: LeaseId) -> None:
        """Drop a lease that has ended and whose keys the caller has removed."""
        for key in self._held.pop(lease_id).keys:
            del self._lease_of[key]

    def note(self, operations: Iterable[Operation]) -> None:
        """Apply the operations of a transaction to the leases of keys.

        A put without a lease detaches the key from its lease.
        """
        for operation in operations:
            match operation:
                case Put(key, _, lease_id):
                    self._detach(key)
                    if lease_id is not None:
                        self._held[lease_id].keys.add(key)
                        self._lease_of[key] = lease_id
                case Delete(key):
                    self._detach(key)
                case Get():
                    pass

    def _detach(self, key: str) -> None:
        lease_id = self._lease_of.pop(key, None)
        if lease_id is not None:
            self._held[lease_id].keys.discard(key)

    def _get(self, lease_id: LeaseId) -> _Held:
        held = self._held.get(lease_id)
        if held is None:
            raise LeaseNotFound(lease_id)
        return held
