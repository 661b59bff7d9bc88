"""Rules of links; when one of them is dropped, a world must violate an invariant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from fairlead_api.batch.header import iterate_headers
from fairlead_api.identifiers import LeaderEpoch, Offset, ProducerId
from fairlead_broker.links import copying, eras, producer_ranges, selection, switching
from fairlead_broker.links.copying import Append, Cut, RaiseEpoch
from fairlead_broker.links.switching import CopiedTo
from fairlead_broker.runtime.linking import arrivals
from fairlead_broker.runtime.linking.arrivals import CheckedBatches
from linked.world import World
from simulator.switches import Switch

_NEXT_STEP = copying.next_step
_NEXT_SWITCH_STEP = switching.next_switch_step
_BLOCKED = selection.blocked


def _without_raises(log: Any, answer: Any, *policies: Any) -> Any:
    step = _NEXT_STEP(log, answer, *policies)
    return Append(answer.log_start) if isinstance(step, RaiseEpoch) else step


def _cut_at_log_start(log: Any, answer: Any, *policies: Any) -> Any:
    step = _NEXT_STEP(log, answer, *policies)
    return Cut(max(step.offset, log.log_start)) if isinstance(step, Cut) else step


def _without_waits(state: Any, known: Any) -> Any:
    return _NEXT_SWITCH_STEP(state, replace(known, mirror_ends=known.source_ends or known.mirror_ends))


def _unchecked(data: memoryview, _: int) -> CheckedBatches:
    headers = [header for _, header in iterate_headers(data)]
    first, last = headers[0], headers[-1]
    return CheckedBatches(data, len(headers), Offset(first.base_offset), LeaderEpoch(last.leader_epoch))


def _whatever_lineage(topic: Any, name: str, local: Any) -> Any:
    return _BLOCKED(replace(topic, lineage=()), name, local)


SWITCHES: Final = (
    Switch(
        "era",
        "a promotion begins a new era of leader epochs",
        (eras, "first_of_next_era", lambda *epochs: LeaderEpoch(max(epochs) + 1)),
    ),
    Switch(
        "known-eras",
        "a new era is above the eras in the topic record",
        (World, "_known_eras", lambda _self, _cluster: []),
    ),
    Switch(
        "raise-first",
        "a batch is appended below the leader epoch of the partition record",
        (copying, "next_step", _without_raises),
    ),
    Switch(
        "restart-below",
        "a mirror without a common record is emptied, not cut at its log start",
        (copying, "next_step", _cut_at_log_start),
    ),
    Switch(
        "fetch-epochs",
        "a fetch names the epoch of the last record",
        (World, "_parted", lambda *_: None),
    ),
    Switch(
        "skip-epoch",
        "a mirror that skips deleted records keeps the epoch of the last of them",
        (World, "_deleted", lambda *_: None),
    ),
    Switch("checks", "what arrives is checked in full", (arrivals, "check_batches", _unchecked)),
    Switch(
        "late-answers",
        "an answer to an earlier leadership or position is dropped",
        (World, "_is_late", lambda *_: False),
    ),
    Switch("tail", "records are kept in a file before they are cut", (World, "_kept", lambda *_: set())),
    Switch(
        "clamp",
        "an offset of a group is copied up to the high watermark",
        (World, "_clamped", lambda _self, _own, offset: offset),
    ),
    Switch(
        "fence-first",
        "the source refuses records before it tells its ends",
        (World, "_fence", lambda *_: None),
    ),
    Switch(
        "drained",
        "an end is reported once every appended record is committed",
        (World, "_is_drained", lambda *_: True),
    ),
    Switch(
        "wait",
        "the mirror reaches the ends before its promotion",
        (switching, "next_switch_step", _without_waits),
    ),
    Switch(
        "epoch-at-end",
        "two logs are equal if their ends and their last epochs are",
        (CopiedTo, "reaches", lambda self, end: self.end_offset == end.end_offset),
    ),
    Switch(
        "id-ranges",
        "each cluster allocates producer ids from a range of its own",
        (producer_ranges, "first_producer_id", lambda _cluster: ProducerId(1 << 32)),
    ),
    Switch(
        "lineage",
        "a topic that comes from a cluster does not return to it",
        (selection, "blocked", _whatever_lineage),
    ),
)
