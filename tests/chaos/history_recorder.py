"""Records the requests of clients and their answers, in the order of one clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

Event = dict[str, Any]


class HistoryRecorder:
    """The history of one run, in which every process and every request has a number."""

    def __init__(self, settings: Event) -> None:
        """Start a history with the settings of the workload."""
        self.events: list[Event] = [{"op": "settings", **settings}]
        self._begun = time.monotonic()
        self._requests = 0
        self._processes = 0
        self.in_flight = 0
        """Number of sends whose outcome is not known yet."""
        self.acknowledged = 0
        """Number of acknowledged sends."""

    @property
    def now(self) -> float:
        """Seconds since the start of the history."""
        return round(time.monotonic() - self._begun, 6)

    def process(self) -> int:
        """Return a new process number; after an unknown outcome, a process continues under a new number."""
        self._processes += 1
        return self._processes

    def note(self, op: str, kind: str, **more: object) -> None:
        """Add an event."""
        self.events.append({"op": op, "type": kind, "time": self.now, **more})

    def begin_send(
        self, process: int, key: str, values: list[str] | None = None, **more: object
    ) -> tuple[int, list[str]]:
        """Record the start of a send, with a new value if none is given; also return the request's number.

        `more`: further entries of the event, such as the transaction.
        """
        self._requests += 1
        sent = values or [f"{process}.{self._requests}"]
        self.in_flight += 1
        self.note("send", "invoke", process=process, id=self._requests, key=key, values=sent, **more)
        return self._requests, sent

    def end_send(self, process: int, request: int, kind: str, **more: object) -> None:
        """Record the end of a request."""
        self.in_flight -= 1
        self.acknowledged += kind == "ok"
        self.note("send", kind, process=process, id=request, **more)

    def begin_commit(self, process: int, group: str, key: str, offset: int, epoch: int) -> int:
        """Record the start of a commit, with the next offset to read; return the request's number."""
        self._requests += 1
        number, told = self._requests, {"group": group, "key": key, "offset": offset, "epoch": epoch}
        self.note("commit", "invoke", process=process, id=number, **told)
        return number

    def begin_question(self, process: int, key: str) -> int:
        """Record the start of a request for the end of a partition."""
        self._requests += 1
        self.note("offsets", "invoke", process=process, id=self._requests, key=key)
        return self._requests

    def count(self, op: str, kind: str) -> int:
        """Count events."""
        return sum(event["op"] == op and event.get("type") == kind for event in self.events)

    def write(self, path: Path) -> None:
        """Write the history to a file."""
        path.write_bytes(msgspec.json.Encoder().encode_lines(self.events))
