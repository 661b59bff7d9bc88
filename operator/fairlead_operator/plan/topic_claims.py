"""Choice of the Topic that owns a topic of a cluster if several Topics name this topic.

`reconcile` calls this module with the last observed state of all Topics. The owner is computed from the objects alone,
so that a restart of the operator does not change the owner. A Topic with a topic id in its status comes first, then the
oldest Topic, then the Topic with the lowest uid. When the owner is deleted, the next Topic in this order takes over the
topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A Topic that claims a topic of a cluster."""

    namespace: str
    name: str
    uid: str
    created: str
    """`metadata.creationTimestamp`: RFC 3339 in UTC, which sorts as text."""
    held_id: str | None
    """Topic id in the status of the Topic, as proof that the Topic owns or owned the topic; None if the status has no
    id."""
    deleting: bool = False

    def __str__(self) -> str:
        """Return the text `namespace/name`."""
        return f"{self.namespace}/{self.name}"


def winner(claims: Iterable[Claim]) -> Claim | None:
    """Return the Topic that owns the topic; None if there are no claims.

    A Topic that is being deleted no longer owns its topic, and the next Topic takes over the topic.
    """
    staying = [claim for claim in claims if not claim.deleting]
    return min(staying, key=lambda each: (each.held_id is None, each.created, each.uid), default=None)
