"""Judges the log ends that clients received: a later answer is never smaller than an earlier answer.

All log ends that one process received are compared. Across processes, only `offsets` answers, which must not be stale,
are compared with the log ends that any process had received before the request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from anomalies import Anomaly, Findings


class Watermarks:
    """The high watermarks of a history."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen: defaultdict[str, int] = defaultdict(int)
        self._seen_by: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._asked: dict[tuple[int, int], int] = {}

    def seen(self, key: str, end: int) -> None:
        """Record a log end that a process received."""
        self._seen[key] = max(self._seen[key], end)

    def polled(self, event: Mapping[str, Any]) -> None:
        """Record the log end from the answer to a poll, and the log end that its last record implies."""
        told = event.get("high_watermark")
        if told is not None:
            self._compare(event, told)
            self.seen(event["key"], told)
        if event["records"]:
            last = event["records"][-1][0] + 1
            self.seen(event["key"], last)
            place = (event["process"], event["key"])
            self._seen_by[place] = max(self._seen_by[place], last)

    def take(self, event: Mapping[str, Any], *, unclean: bool) -> None:
        """Apply a request for the log end, or its answer; unclean elections allow a smaller log end."""
        asked = (event["process"], event["id"])
        if event["type"] == "invoke":
            self._asked[asked] = self._seen[event["key"]]
            return
        before = self._asked.pop(asked)
        if event["type"] != "ok":
            return
        told = event["high_watermark"]
        if told < before and not unclean:
            said = f"{event['key']}: process {event['process']} got {told}, after {before} had been answered"
            self._findings.note(Anomaly.BACKWARD, said)
        self._compare(event, told)
        self.seen(event["key"], told)

    def truncated(self, process: int, key: str) -> None:
        """Record that a process learned of a truncation, after which the log end may be smaller."""
        self._seen_by.pop((process, key), None)

    def _compare(self, event: Mapping[str, Any], told: int) -> None:
        place = (event["process"], event["key"])
        if told < self._seen_by[place]:
            said = f"{event['key']}: process {place[0]} got {told} after {self._seen_by[place]}"
            self._findings.note(Anomaly.BACKWARD, said)
        self._seen_by[place] = max(self._seen_by[place], told)
