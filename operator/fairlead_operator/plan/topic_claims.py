"""The owner among several Topics for one topic of a cluster.

Called by `reconcile` with the last seen state of all Topics. The owner follows from the objects themselves, so that it
survives the operator: a Topic with the topic's id in its status goes before the others, then the oldest, then the
lowest uid. When the owner is deleted, the next Topic in this order takes the topic over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A Topic that asks for a topic."""

    namespace: str
    name: str
    uid: str
    created: str
    """`metadata.creationTimestamp`: RFC 3339 in UTC, which sorts as text."""
    held_id: str | None
    """The topic id in its status: it has, or had, the topic."""
    deleting: bool = False

    def __str__(self) -> str:
        """Read as `namespace/name`."""
        return f"{self.namespace}/{self.name}"


def winner(claims: Iterable[Claim]) -> Claim | None:
    """Return the Topic that owns the topic; None without claims.

    A Topic in deletion owns it no longer: the next one takes it over.
    """
    staying = [claim for claim in claims if not claim.deleting]
    return min(staying, key=lambda each: (each.held_id is None, each.created, each.uid), default=None)
