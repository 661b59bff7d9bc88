"""The controller's right to write, and the division of the controller's writes into transactions.

The planners of this package use this module. All functions are pure. Every transaction of a controller compares the
create revision of its controller key, so that a controller that has lost its term cannot change the stored records
(protocol section 3, rule 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from fairlead_api.identifiers import Revision
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.store_writes import Compare, created_at

PARTITIONS_MAX: Final = 60
"""Maximum number of partitions in one transaction. Each partition needs up to two of the 128 allowed compares."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """One term of one controller."""

    keys: Keys
    revision: Revision
    """Create revision of the controller key."""

    @property
    def guard(self) -> Compare:
        """Compare that succeeds while the term lasts."""
        return created_at(self.keys.controller, self.revision)


def portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Divide a sequence into parts of at most `size`, in order."""
    return (items[start : start + size] for start in range(0, len(items), size))
