"""Checker of client histories that finds lost, repeated, reordered, changed and invented records.

A history is a file of JSON lines, ordered by one clock of the test. A *key* is one partition; a value is a string that
is sent at most once to one key in the whole history. The first line contains the settings of the workload
(`anomalies.Settings`; the strictest settings if the line is missing). Each line after the first is one event:

    {"op": "settings", "acks": "all", "idempotence": true, "reader": "assign"}
    {"op": "send", "type": "invoke", "process": 3, "id": 17, "key": "t-0", "values": ["a", "b"], "time": 1.5}
    {"op": "send", "type": "ok", "process": 3, "id": 17, "offset": 41}        the values have offsets 41, 42
    {"op": "send", "type": "fail", "process": 3, "id": 17}                    certainly not stored
    {"op": "send", "type": "info", "process": 3, "id": 17}                    the outcome is unknown
    {"op": "assign", "type": "ok", "process": 4, "keys": {"t-0": 0}}          starts again, here at offset 0
    {"op": "poll", "type": "ok", "process": 4, "key": "t-0", "records": [[41, "a"], [42, "b"]]}
    {"op": "truncated", "type": "ok", "process": 4, "key": "t-0"}             learned that the log lost its end
    {"op": "offsets", "type": "invoke", "process": 5, "id": 1, "key": "t-0"}
    {"op": "offsets", "type": "ok", "process": 5, "id": 1, "key": "t-0", "high_watermark": 43}
    {"op": "commit", "type": "invoke", "process": 4, "id": 2, "group": "g", "key": "t-0", "offset": 43, "epoch": 1}
    {"op": "committed", "type": "ok", "process": 4, "id": 3, "group": "g", "key": "t-0", "offset": 43}
    {"op": "txn", "type": "ok", "id": 9}                                      sends and polls carry "txn": 9
    {"op": "heal"}                                                            from here on no more faults
    {"op": "end", "keys": {"t-0": 43}}      the log end of each key when all readers had reached it

A poll may carry `position` (the offset of the next read), `high_watermark`, `last_stable_offset`, `group`, `began` and
`time` (seconds),
`rebalanced` (keys that moved while it ran) and `"final": true` for the readers that read everything at the end; if
readers read everything at the end, a record that they did not receive is lost, even if another reader received it
before.

Without the last line, a record that was never read might still exist: the verdict is then `unknown`, unless another
anomaly is found. `python history_checker.py FILE` prints the report and exits with 1 unless the history is valid.
"""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from anomalies import FORBIDDEN, Anomaly, Findings, Settings
from group_offsets import GroupOffsets
from reading import KeyReads, Reading
from transactions import Transactions
from watermarks import Watermarks

__all__ = ["Anomaly", "History", "Report", "Settings", "check", "read_events"]


@dataclass(slots=True)
class Send:
    """One send request."""

    process: int
    key: str
    values: list[str]
    offset_before: int
    """Highest acknowledged offset of the key when the request began."""
    txn: int | None = None
    outcome: str = "info"
    offset: int | None = None


@dataclass(slots=True)
class Report:
    """The findings of the checker."""

    verdict: str = "valid"
    anomalies: dict[str, list[str]] = field(default_factory=dict)
    allowed: dict[str, int] = field(default_factory=dict)
    """Counts of anomalies that the settings do not forbid."""
    undecided: list[str] = field(default_factory=list)
    sends: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    unanswered_stored: int = 0
    values_read: int = 0
    lag_seconds_max: float = 0.0
    """Lower bound, in seconds, of the largest lag that a reader had behind the end of a log."""


class History:
    """Checker of a history, which it reads event by event."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._sends: dict[int, Send] = {}
        self._acknowledged_to: defaultdict[str, int] = defaultdict(lambda: -1)
        self._ends: dict[str, int] | None = None
        self._healed = False
        self._number = 0
        self._findings = Findings()
        self._transactions = Transactions(self._findings)
        self._reading = Reading(self._findings)
        self._watermarks = Watermarks(self._findings)
        self._groups = GroupOffsets(self._findings)

    def take(self, event: dict[str, Any]) -> None:
        """Apply the next event."""
        self._number += 1
        match event["op"], event.get("type"):
            case "send", "invoke":
                self._begin(event)
            case "send", outcome:
                self._complete(self._sends[event["id"]], str(outcome), event)
            case "poll", "ok":
                self._poll(event)
            case "assign", _:
                self._reading.assign(event["process"], event["keys"])
            case "offsets", _:
                self._watermarks.take(event, unclean=self._settings.unclean)
            case "truncated", _:
                self._watermarks.truncated(event["process"], event["key"])
                self._reading.assign(event["process"], [event["key"]])
            case "commit" | "committed", _:
                self._groups.take(self._number, event)
            case "txn", outcome:
                self._transactions.ended(event["id"], str(outcome))
            case ("poll", "info" | "fail") | ("note", _):
                pass
            case other:
                self._take_frame(str(other[0]), event)

    def judge(self) -> Report:
        """Return the findings about the whole history."""
        self._abort()
        known = self._known()
        self._reading.judge(known)
        self._groups.judge(known)
        self._judge_reads()
        for send in self._sends.values():
            self._judge_send(send)
        self._judge_order()
        self._judge_txns(known)
        limit = self._settings.lag_seconds_max
        for lag, said in self._reading.lags_after_heal:
            if limit is not None and lag > limit:
                self._findings.note(Anomaly.REALTIME_LAG, said)
        return self._report()

    # ------------------------------------------------------------------------------------------ reading events

    def _take_frame(self, kind: str, event: dict[str, Any]) -> None:
        """Apply an event about the history itself: its settings, the end of the faults, or its end."""
        if kind == "settings":
            assert self._number == 1, "the settings are the first line"
            self._settings = Settings.of(event)
        elif kind == "heal":
            self._healed = True
        elif kind == "end":
            self._ends = event["keys"]
        else:
            message = f"no event is known as {kind} {event.get('type')}"
            raise ValueError(message)

    def _begin(self, event: dict[str, Any]) -> None:
        assert event["id"] not in self._sends, f"two requests have the id {event['id']}"
        key, values, txn = event["key"], event["values"], event.get("txn")
        self._sends[event["id"]] = Send(event["process"], key, values, self._acknowledged_to[key], txn)
        if txn is not None:
            self._transactions.wrote(txn, key, values)

    def _complete(self, send: Send, outcome: str, event: dict[str, Any]) -> None:
        send.outcome, send.offset = outcome, event.get("offset")
        if outcome != "ok" or send.offset is None:
            assert outcome != "ok" or self._settings.acks == "0", "an acknowledgement names its offset"
            return
        last = send.offset + len(send.values) - 1
        self._acknowledged_to[send.key] = max(self._acknowledged_to[send.key], last)
        self._reading.acknowledged(send.key, last, event.get("time"))
        if self._settings.acks == "all" and not self._settings.unclean:
            self._watermarks.seen(send.key, last + 1)

    def _poll(self, event: dict[str, Any]) -> None:
        self._reading.poll(event, healed=self._healed)
        self._watermarks.polled(event)
        if "group" in event:
            offsets = [offset for offset, _ in event["records"]]
            self._groups.delivered(self._number, event["group"], event["key"], offsets)
        if self._transactions or "txn" in event:
            self._transactions.polled(event)

    # ------------------------------------------------------------------------------------------ judging

    def _abort(self) -> None:
        """Treat the sends of a transaction that is not committed as not sent, for readers of committed records only."""
        if self._settings.isolation != "read_committed":
            return
        for send in self._sends.values():
            if self._transactions.is_aborted(send.txn):
                send.outcome = "fail"

    def _known(self) -> dict[str, list[int]]:
        """Return the offsets that have a record, sorted, by key."""
        known = {key: set(reads.values) for key, reads in self._reading.keys.items()}
        if self._settings.keeps_acknowledged:
            for send in self._sends.values():
                if send.outcome == "ok" and send.offset is not None:
                    offsets = range(send.offset, send.offset + len(send.values))
                    known.setdefault(send.key, set()).update(offsets)
        return {key: sorted(offsets) for key, offsets in known.items()}

    def _judge_reads(self) -> None:
        """Compare the records that were read with the records that were sent."""
        sent: defaultdict[str, dict[str, Send]] = defaultdict(dict)
        for send in self._sends.values():
            sent[send.key].update(dict.fromkeys(send.values, send))
        for key, reads in self._reading.keys.items():
            origins = sent[key]
            for value, offset in reads.places.items():
                origin = origins.get(value)
                if origin is None:
                    self._findings.note(Anomaly.PHANTOM, f"{key}@{offset}: {value!r} was never sent there")
                elif origin.outcome == "fail":
                    self._findings.note(Anomaly.ABORTED_READ, f"{key}@{offset}: {value!r} was refused")

    def _judge_send(self, send: Send) -> None:
        """Compare one request with the records in the log."""
        reads = self._reading.of(send.key)
        if send.outcome == "fail":
            return
        stored = self._offsets(send)
        if stored and min(stored) <= send.offset_before:
            said = (
                f"{send.key}: {send.values[0]!r} is at {min(stored)}, sent after offset {send.offset_before}"
            )
            self._findings.note(Anomaly.OFFSET_ORDER, said)
        if any(after <= before for before, after in pairwise(stored)):
            self._findings.note(Anomaly.NONMONOTONIC_SEND, f"{send.key}: {send.values} are at {stored}")
        if not stored or (send.offset is None and send.outcome == "ok"):
            return
        first = send.offset
        if first is None:
            first = next(
                reads.places[value] - n for n, value in enumerate(send.values) if value in reads.places
            )
        self._judge_kept(send, first, reads)

    def _judge_kept(self, send: Send, first: int, reads: KeyReads) -> None:
        """Compare the acknowledged or partly read records with the records that readers got."""
        seen = reads.final if reads.final_to >= 0 else reads.places
        read_to = reads.final_to if reads.final_to >= 0 else reads.read_to
        keeps = self._settings.keeps_acknowledged and send.offset is not None
        for at, value in enumerate(send.values, first):
            if keeps and reads.values.get(at, value) != value:
                said = f"{send.key}@{at}: {value!r} was acknowledged and {reads.values[at]!r} read"
                self._findings.note(Anomaly.INCONSISTENT_OFFSETS, said)
            if keeps and reads.places.get(value, at) != at:
                said = f"{send.key}: {value!r} was acknowledged at {at} and read at {reads.places[value]}"
                self._findings.note(Anomaly.DUPLICATE, said)
            if self._ends is not None and value not in seen:
                kind = Anomaly.LOST_WRITE if at <= read_to else Anomaly.UNSEEN
                if self._transactions.is_visible(send.txn):
                    kind = Anomaly.TORN_TRANSACTION
                self._findings.note(kind, f"{send.key}@{at}: {value!r} was {_certainty_of(send)}")

    def _judge_order(self) -> None:
        """Compare the order in which each process sent records with their order in the log."""
        last: dict[tuple[int, str], int] = {}
        for send in self._sends.values():
            for offset in () if send.outcome == "fail" else self._offsets(send):
                before = last.get((send.process, send.key), -1)
                if offset <= before:
                    said = (
                        f"{send.key}: process {send.process} sent {send.values} behind {before}, at {offset}"
                    )
                    self._findings.note(Anomaly.NONMONOTONIC_SEND, said)
                last[send.process, send.key] = max(before, offset)

    def _judge_txns(self, known: dict[str, list[int]]) -> None:
        """Judge the transactions, and count the records of other writers between the records of a transaction."""
        spans: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        places: dict[tuple[str, str], int] = {}
        for send in self._sends.values() if self._transactions else ():
            if send.txn is not None:
                offsets = self._offsets(send)
                spans[send.txn, send.key].extend(offsets)
                if len(offsets) == len(send.values):
                    places.update(zip(((send.key, value) for value in send.values), offsets, strict=True))
        self._transactions.judge(places)
        for (txn, key), offsets in spans.items():
            if not offsets:
                continue
            between = bisect_left(known[key], max(offsets)) - bisect_right(known[key], min(offsets))
            if between > max(0, len(offsets) - 2):
                self._findings.note(Anomaly.INTERNAL_SEND_SKIP, f"{key}: inside transaction {txn}")

    def _offsets(self, send: Send) -> list[int]:
        """Return the offsets of a request's values, as known from an answer or a poll."""
        if send.offset is not None:
            return list(range(send.offset, send.offset + len(send.values)))
        places = self._reading.of(send.key).places
        return [places[value] for value in send.values if value in places]

    def _report(self) -> Report:
        sends = self._sends.values()
        unanswered = [send for send in sends if send.outcome == "info"]
        report = Report(
            sends=len(sends),
            acknowledged=sum(send.outcome == "ok" for send in sends),
            unanswered=len(unanswered),
            unanswered_stored=sum(bool(self._offsets(send)) for send in unanswered),
            values_read=sum(len(reads.places) for reads in self._reading.keys.values()),
            lag_seconds_max=round(self._reading.lag_seconds_max, 3),
            undecided=[*self._unconverged(), *self._groups.undecided],
        )
        for anomaly in sorted(self._findings.counts):
            if FORBIDDEN[anomaly](self._settings):
                report.anomalies[anomaly] = self._findings.examples_of(anomaly)
            else:
                report.allowed[anomaly] = self._findings.counts[anomaly]
        report.verdict = "invalid" if report.anomalies else "unknown" if report.undecided else "valid"
        return report

    def _unconverged(self) -> list[str]:
        """Describe the keys that were not read to their end after the last send."""
        if self._ends is None:
            return ["no reader has read every key to its end"]
        keys = self._reading.keys
        read = {key: keys[key].read_to if key in keys else -1 for key in self._ends}
        return [
            f"{key} was read to {read[key]} of {end}"
            for key, end in self._ends.items()
            if read[key] < end - 1
        ]


def _certainty_of(send: Send) -> str:
    return "acknowledged" if send.outcome == "ok" else "sent together with records that were stored"


def check(events: Iterable[dict[str, Any]]) -> Report:
    """Judge a history."""
    history = History()
    # A million objects stay alive until the end and form no cycles, so the garbage collector would find nothing.
    collected = gc.isenabled()
    gc.disable()
    try:
        for event in events:
            history.take(event)
        return history.judge()
    finally:
        if collected:
            gc.enable()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file of JSON lines."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    with path.open("rb") as lines:
        for line in lines:
            yield decoder.decode(line)


def main() -> int:
    """Judge a file."""
    report = check(read_events(Path(sys.argv[1])))
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(asdict(report)), indent=1) + b"\n")
    return int(report.verdict != "valid")


if __name__ == "__main__":
    sys.exit(main())
