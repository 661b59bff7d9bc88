"""Rules of cleaning; when one of them is dropped, the world must find a violation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from compacted.world import World
from fairlead_api.batch.columns import nulls_of
from fairlead_api.identifiers import Offset
from fairlead_broker.compaction import removal, windows
from fairlead_broker.compaction.cleaned_batches import CleanedBatches
from fairlead_broker.compaction.fates import Fates
from fairlead_broker.compaction.key_hashes import KeyHashes
from fairlead_broker.compaction.removal import Copying
from fairlead_broker.log import PartitionLog, newest_digest
from fairlead_broker.log.cleaning import rounds, swap
from fairlead_broker.log.segments.storage import Storage
from simulator.switches import Switch

_COPYING = removal.copying
_FITS = CleanedBatches._fits
_HASHES_OF = KeyHashes.of
_CLOSE = rounds._GroupWriter.close
_BEGIN_SWAP = swap.begin_swap
_SUM_OF = newest_digest._sum_of


def _without(dropped: Copying) -> Any:
    """Return the production rule for followers without one of its answers."""

    def rule(
        end_offset: int,
        own_removed: int,
        leader_removed: int,
        base: int | None = None,
        *,
        own_removing: int = 0,
    ) -> Copying:
        how = _COPYING(end_offset, own_removed, leader_removed, base, own_removing=own_removing)
        return Copying.APPEND if how is dropped else how

    return rule


def _fits_any_epoch(self: Any, pending: Any, header: Any, *rest: Any) -> bool:
    return _FITS(
        self, pending, msgspec.structs.replace(header, leader_epoch=pending.source.leader_epoch), *rest
    )


def _fits_any_append_time(self: Any, pending: Any, header: Any, *rest: Any) -> bool:
    return _FITS(self, pending, msgspec.structs.replace(header, append_time_us=pending.append_time_us), *rest)


def _hashes_of_windows(self: KeyHashes, keys: Any) -> Any:
    upper, lower = _HASHES_OF(self, keys)
    return upper + np.uint64(len(keys)), lower


class _Unsynced:
    """A file that is never synced."""

    def __init__(self, file: Any) -> None:
        self.write = file.write

    def sync(self) -> None:
        """Do nothing."""


def _close_unsynced(self: Any) -> None:
    self._file = _Unsynced(self._file)
    _CLOSE(self)


class _WithoutFolderSync:
    """A storage that does not sync folders."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def sync_folder(self, folder: Path) -> None:
        """Do nothing."""


def _begin_unsynced(storage: Any, folder: Path, base_offset: Offset) -> None:
    _BEGIN_SWAP(_WithoutFolderSync(storage), folder, base_offset)  # type: ignore[arg-type]


def _close_before_whole(self: Any) -> None:
    buffers, self._buffers = self._buffers, []
    _CLOSE(self)
    if buffers:
        self._file.write(buffers, self._flushed)


def _sum_with_deletes(window: Any, found: Any) -> int:
    deleted = nulls_of(window.columns.column(1)) & np.isin(window.offsets, found)
    return _SUM_OF(window, found) + int(np.sum(window.offsets[deleted]))


SWITCHES: Final = {
    "copy-again": Switch(
        "copy-again",
        "a follower below its leader's `removed` copies the log again",
        (removal, "copying", _without(Copying.COPY_AGAIN)),
    ),
    "least-removed": Switch(
        "least-removed",
        "a copy is as little cleaned as its least cleaned source",
        (removal, "copying", _without(Copying.LOWER)),
    ),
    "end-after-cut": Switch(
        "end-after-cut",
        "a follower that is cut to a merged batch continues by its end after the cut",
        (
            removal,
            "copying",
            lambda end, own, leader, _base=None, *, own_removing=0: _COPYING(
                end, own, leader, own_removing=own_removing
            ),
        ),
    ),
    "note-removed": Switch(
        "note-removed",
        "the offset below which tombstones may be missing is stored before they go, and told to followers",
        (PartitionLog, "_announce", lambda _self, _group: None),
    ),
    "take-removed": Switch(
        "take-removed",
        "a follower that copies again takes its leader's `removed`",
        (World, "take_removed", lambda _self, _follower: None),
    ),
    "horizon": Switch(
        "horizon",
        "a tombstone stays for `delete.retention.ms` after the round that stamps it",
        (windows, "_horizon", lambda _header, _data: 0),
    ),
    "epochs-apart": Switch(
        "epochs-apart", "a batch never crosses a leader epoch", (CleanedBatches, "_fits", _fits_any_epoch)
    ),
    "append-times-apart": Switch(
        "append-times-apart",
        "batches of different append times are not merged if the append time is the records' time",
        (CleanedBatches, "_fits", _fits_any_append_time),
    ),
    "hash-of-key": Switch(
        "hash-of-key", "the hash of a key depends on the key alone", (KeyHashes, "of", _hashes_of_windows)
    ),
    "cut-to-merged": Switch(
        "cut-to-merged",
        "a follower whose log ends inside a merged batch is cut to the base of the batch",
        (PartitionLog, "_cut_to_merged", lambda _self, _data, *, may_cut: False),
    ),
    "synced-segment": Switch(
        "synced-segment",
        "a cleaned segment is synced before it counts",
        (rounds._GroupWriter, "close", _close_unsynced),
    ),
    "synced-names": Switch(
        "synced-names",
        "the name of a cleaned segment is durable before old segments go",
        (swap, "begin_swap", _begin_unsynced),
    ),
    "whole-segment": Switch(
        "whole-segment",
        "all batches of a cleaned segment are written before it is synced and counts",
        (rounds._GroupWriter, "close", _close_before_whole),
    ),
    "aborted-records": Switch(
        "aborted-records",
        "the records of an aborted transaction go before its entry in the index of aborted transactions",
        (Fates, "is_aborted", lambda _self, _header: False),
    ),
    "digest-without-deletes": Switch(
        "digest-without-deletes",
        "a deleted key adds nothing to the digest of the newest records",
        (newest_digest, "_sum_of", _sum_with_deletes),
    ),
}
