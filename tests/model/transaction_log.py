"""What the log of a partition contains in the model: the state of a producer, confirmed markers, committed records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transaction_state import ABORT, COMMIT, DATA, Entry, Part, Record, Seen, World


class ProducerState(NamedTuple):
    """State of a producer in a partition."""

    epoch: int = -1
    next_sequence: int = 0
    first: int | None = None
    """Position of the first batch of the open transaction."""
    has_ended: bool = False


def producer_of(log: Sequence[Entry], name: int, without: frozenset[str]) -> ProducerState:
    """Return the state of a producer according to a log."""
    epoch, following, first, has_ended = ProducerState()
    for at, entry in enumerate(log):
        if entry.name != name:
            continue
        if entry.kind == DATA:
            if entry.epoch != epoch or has_ended:
                epoch, following, has_ended = entry.epoch, 0, False
                if first is None or "resolve before higher" not in without:
                    first = at
            following = max(following, entry.sequence + 1)
            first = at if first is None else first
        elif "exact marker" in without or entry.epoch >= epoch:
            epoch, following, first, has_ended = max(entry.epoch, epoch), 0, None, True
    return ProducerState(epoch, following, first, has_ended)


def is_confirmed(part: Part, name: int, epoch: int, world: World) -> bool:
    """Return whether the end of an epoch is below the high watermark that the leader knows (rule 7.3.4)."""
    known = len(part.log) if "confirm below hw" in world.without else part.known
    return any(
        entry.name == name and (entry.epoch > epoch or (entry.kind != DATA and entry.epoch == epoch))
        for entry in part.log[:known]
    )


def outcome_of(record: Record, partition: int, epoch: int) -> int:
    """Return the outcome of a past epoch in a partition; what is not recorded as committed is aborted (rule 7.3.2)."""
    is_committed = any(each == epoch and partition in named for each, named in record.unfinished)
    return COMMIT if is_committed else ABORT


def visible(part: Part, world: World) -> tuple[Seen, ...]:
    """Return the records that a reader of committed records gets: committed data below the last stable offset."""
    limit = part.known
    if "lso" not in world.without:
        opened = [_unstable(part, name, world) for name in {entry.name for entry in part.log}]
        limit = min([limit, *(each for each in opened if each is not None)])
    found = []
    for at, entry in enumerate(part.log[:limit]):
        if entry.kind == DATA:
            rest = part.log[at:]
            marker = next((each for each in rest if each.kind != DATA and each.name == entry.name), None)
            if marker is None or marker.kind == COMMIT or "aborted index" in world.without:
                found.append((entry.name, entry.epoch, entry.sequence, entry.input))
    return tuple(found)


def _unstable(part: Part, name: int, world: World) -> int | None:
    """Return the first position of a transaction whose marker is not below the high watermark, if any (rule 7.2.6)."""
    end = len(part.log) if "stable below hw" in world.without else part.known
    opened: int | None = None
    for at, entry in enumerate(part.log):
        if entry.name != name:
            continue
        if entry.kind == DATA:
            opened = at if opened is None else opened
        elif at < end and (opened is None or part.log[opened].epoch <= entry.epoch):
            opened = None
        elif opened is not None:
            break
    return opened
