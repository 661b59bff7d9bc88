"""Replace a group of segments with one cleaned segment; after a crash, either the group or that segment remains.

The files of the new segment are synced under names with the suffix `.cleaned`. The new segment takes effect once the
file with its batches durably has the name `.log.swap`. The last step removes the old segments and gives the new files
their final names; a starting broker repeats this step if `.log.swap` exists. No journal is needed: the offsets of the
batches in `.log.swap` show which segments it replaces.

The folder is synced before each of the two renames of the batch file, since a crash may keep any subset of the changes
since the last sync: the old batches must never be combined with new indexes or neighbours, nor the new batches with old
ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairlead_api.identifiers import Offset
from fairlead_broker.log.cleaning.rounds import CLEANED_SUFFIX
from fairlead_broker.log.segments.batch_walk import BadBatch, find_good_batch, walk_headers
from fairlead_broker.log.segments.segments import ABORTED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX
from fairlead_broker.log.segments.storage import Storage

SWAP_SUFFIX: Final = ".swap"
_OTHERS: Final = (".index", ".timeindex", ABORTED_SUFFIX)
"""Suffixes of the files of a cleaned segment other than its batches."""
_NAME_DIGITS: Final = 20


def begin_swap(storage: Storage, folder: Path, base_offset: Offset) -> None:
    """Make a cleaned segment take effect. Raises `OSError`; the next start then decides which segments remain."""
    name = f"{base_offset:020d}"
    for suffixes in (_OTHERS, (LOG_SUFFIX,)):
        for suffix in suffixes:
            _rename(storage, folder, name + suffix + CLEANED_SUFFIX, name + suffix + SWAP_SUFFIX)
        storage.sync_folder(folder)


def finish_swap(storage: Storage, folder: Path, base_offset: Offset, others: Iterable[int]) -> None:
    """Remove the other segments of a group, and give the new segment its final names. Raises `OSError`.

    The producer state at the first offset of the group is kept.
    """
    for base in others:
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            storage.unlink(folder / f"{base:020d}{suffix}")
    name = f"{base_offset:020d}"
    for suffixes in (_OTHERS, (LOG_SUFFIX,)):
        for suffix in suffixes:
            if storage.exists(folder / (name + suffix + SWAP_SUFFIX)):
                _rename(storage, folder, name + suffix + SWAP_SUFFIX, name + suffix)
        storage.sync_folder(folder)


def drop_cleaned(storage: Storage, folder: Path) -> None:
    """Remove the files of a segment that has not taken effect yet. Raises `OSError`."""
    for name in storage.list_files(folder):
        if name.endswith(CLEANED_SUFFIX):
            storage.unlink(folder / name)


def finish_swaps(storage: Storage, folder: Path) -> list[str]:
    """Finish the swaps that a crash interrupted, drop segments that did not take effect, and return the file names.

    Raises `OSError`.
    """
    names = storage.list_files(folder)
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return names
    drop_cleaned(storage, folder)
    counting = {name[:_NAME_DIGITS] for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
    for name in names:
        if name.endswith(SWAP_SUFFIX) and name[:_NAME_DIGITS] not in counting:
            storage.unlink(folder / name)
    bases = [int(name[:_NAME_DIGITS]) for name in names if name.endswith(LOG_SUFFIX)]
    for name in sorted(counting):
        base = Offset(int(name))
        end = _end_of(storage, folder / (name + LOG_SUFFIX + SWAP_SUFFIX))
        finish_swap(storage, folder, base, [each for each in bases if base < each < end])
    return storage.list_files(folder)


def _end_of(storage: Storage, path: Path) -> int:
    """Return the offset after the last intact batch of a file."""
    file = storage.open(path)
    position, end, size = 0, 0, file.size()
    while position < size:
        try:
            for batch in walk_headers(file, position, size, None):
                position, end = batch.end, batch.header.next_offset
        except BadBatch as bad:
            good = find_good_batch(file, bad.search_from, size, end)
            if good is None:
                break
            position = good.position
    return end


def _rename(storage: Storage, folder: Path, source: str, target: str) -> None:
    storage.rename(folder / source, folder / target)
    # After a power failure during an earlier rename, both names may refer to the file. Another rename then has no
    # effect.
    storage.unlink(folder / source)
