"""Facts about a partition that a round needs, and the fate of each stored batch: kept unchanged, dropped, or filtered.

`kept_rows` decides which records of filtered batches stay. The facts are taken from the log and its producer state
before the round begins, since a round reads only the cleanable part of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import msgspec

from fairlead_api.batch.control_batches import read_marker
from fairlead_api.batch.extension import ExtensionEntry, ExtensionType, read_extension

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead_api.batch.header import BatchHeader

VERBATIM_BYTES: Final = 256 << 10
"""Size in bytes from which a batch is kept unchanged if all its records stay, because merging would gain nothing."""


class Fate(Enum):
    """What a round does with a stored batch."""

    VERBATIM = auto()
    """The bytes stay unchanged."""
    DROPPED = auto()
    """No record stays, and the offsets are covered by a neighbour."""
    ALONE = auto()
    """Records are filtered. Producer fields, idempotency key and offset range stay, even without a record."""
    FILTERED = auto()
    """Records are filtered, and the batch may be merged with its neighbours."""


class RoundFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a round needs in addition to the batches."""

    now_us: int
    """Time of the round according to the broker's clock."""
    delete_retention_us: int
    removal_limit: int
    """Offset below which the round may remove expired tombstones, and markers."""
    aborted: tuple[tuple[int, int, int], ...] = ()
    """Producer id, first offset and marker offset of the aborted transactions."""
    producer_batches: frozenset[int] = frozenset()
    """Base offsets of batches to which the producer state still refers."""
    keyed_batches: frozenset[int] = frozenset()
    """Base offsets of batches whose idempotency key is remembered."""
    last_markers: frozenset[tuple[int, int]] = frozenset()
    """Producer id and epoch in the last marker of each remembered transactional producer."""
    batch_bytes_max: int = 1 << 20
    """Largest size of a merged batch, `max.message.bytes`."""


class Fates:
    """Fates of the batches of one round."""

    __slots__ = ("_aborted", "_facts", "_until")

    def __init__(self, facts: RoundFacts, until: int) -> None:
        """`until`: base offset from which batches stay unchanged."""
        self._facts = facts
        self._until = until
        self._aborted = _by_producer(facts.aborted)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        firsts, markers = self._aborted.get(header.producer_id, ((), ()))
        at = bisect_right(firsts, header.base_offset) - 1
        return at >= 0 and header.base_offset < markers[at]

    def has_rows(self, header: BatchHeader) -> bool:
        """Return whether a batch below the end of the range has records that readers of committed records see."""
        return (
            header.record_count > 0
            and header.base_offset < self._until
            and not header.is_control
            and not self.is_aborted(header)
        )

    def of(self, header: BatchHeader, batch: memoryview) -> Fate:
        """Return the fate of a batch whose checksums are correct. Raises `malformed_batch`."""
        facts = self._facts
        if header.base_offset >= self._until:
            return Fate.VERBATIM
        if header.is_control:
            return Fate.DROPPED if self._may_drop_marker(header, batch) else Fate.VERBATIM
        # A remembered batch of an aborted transaction stays without records.
        if self.is_aborted(header) and header.base_offset not in facts.producer_batches:
            return Fate.DROPPED
        if header.base_offset in facts.producer_batches or header.base_offset in facts.keyed_batches:
            return Fate.ALONE
        return Fate.FILTERED

    def kept_entries(self, header: BatchHeader, batch: memoryview) -> tuple[ExtensionEntry, ...]:
        """Return the extension entries that stay with a batch: the entries for a remembered idempotency key."""
        if header.base_offset not in self._facts.keyed_batches:
            return ()
        kept = (ExtensionType.IDEMPOTENCY_KEY, ExtensionType.REQUEST_DIGEST)
        return tuple(entry for entry in read_extension(batch, header) if entry.type in kept)

    def _may_drop_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        extension = bytes(batch[header.body_start - header.extension_bytes : header.body_start])
        marker = read_marker(extension, header.producer_id, header.producer_epoch)
        return (
            marker is not None
            and header.base_offset < self._facts.removal_limit
            and (header.producer_id, header.producer_epoch) not in self._facts.last_markers
        )


def _by_producer(
    aborted: Iterable[tuple[int, int, int]],
) -> dict[int, tuple[list[int], list[int]]]:
    """Return the first offsets and the marker offsets of each producer's aborted transactions, in ascending order."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for producer_id, first, marker in sorted(aborted):
        firsts, markers = found.setdefault(producer_id, ([], []))
        firsts.append(first)
        markers.append(marker)
    return found
