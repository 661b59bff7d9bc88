"""How the tail of a topic is written: a record a line (NDJSON), or an event each (Server-Sent Events).

Callers: ``tail``. An event's id names the next offset of every partition, so that a browser that comes again with
``Last-Event-ID`` goes on where it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from fairlead_api.bodies.json_records import FetchedRecord
from fairlead_api.bodies.media_types import EVENT_STREAM, Header
from fairlead_api.excerpts import shown
from fairlead_api.problems import ProblemError

_EVENT_ID: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,18}(,[0-9]{1,10}:[0-9]{1,18})*")
_PAIR: Final = re.compile("([0-9]+):([0-9]+)")
_EVENT_ID_BYTES_MAX: Final = 16 << 10

Positions = dict[int, int]
"""The next offset of every partition."""


class TailFormat(Protocol):
    """One form of the answer; positions move as records are written."""

    def begin(self, positions: Positions) -> bytes:
        """Return the bytes before the first record."""

    def records(self, records: Iterable[FetchedRecord], positions: Positions) -> bytes:
        """Write records, and move the positions behind each."""

    def problem(self, problem: Mapping[str, object]) -> bytes:
        """Return the event of a problem."""

    def sign_of_life(self) -> bytes:
        """What keeps an idle connection alive; nothing where the form has no room for it."""


class LineFormat:
    """NDJSON."""

    def begin(self, positions: Positions) -> bytes:
        """Nothing."""
        del positions
        return b""

    def records(self, records: Iterable[FetchedRecord], positions: Positions) -> bytes:
        """A line each."""
        lines = []
        for record in records:
            positions[record.partition] = record.offset + 1
            lines.append(record)
        return msgspec.json.Encoder().encode_lines(lines)

    def problem(self, problem: Mapping[str, object]) -> bytes:
        """A line with the only member `problem`."""
        return msgspec.json.encode({"problem": problem}) + b"\n"

    def sign_of_life(self) -> bytes:
        """Nothing: every line is a record."""
        return b""


class EventFormat:
    """Server-Sent Events: `message` events, and events of the type `problem`."""

    def begin(self, positions: Positions) -> bytes:
        """Return an event without data: a client cut off before the first record resumes at its start."""
        return b"id: %s\n\n" % event_id(positions)

    def records(self, records: Iterable[FetchedRecord], positions: Positions) -> bytes:
        """An event each."""
        events = []
        for record in records:
            positions[record.partition] = record.offset + 1
            events.append(b"id: %s\ndata: %s\n\n" % (event_id(positions), msgspec.json.encode(record)))
        return b"".join(events)

    def problem(self, problem: Mapping[str, object]) -> bytes:
        """An event of the type `problem`."""
        return b"event: problem\ndata: %s\n\n" % msgspec.json.encode({"problem": problem})

    def sign_of_life(self) -> bytes:
        """A comment."""
        return b":\n\n"


def tail_format(media_type: str) -> TailFormat:
    """The form of a media type of the route."""
    return EventFormat() if media_type == EVENT_STREAM else LineFormat()


def event_id(positions: Positions) -> bytes:
    """Positions as ``partition:offset,...``, in order of partitions."""
    return ",".join(f"{partition}:{positions[partition]}" for partition in sorted(positions)).encode()


def parse_event_id(text: str, partitions: int) -> Positions:
    """The positions of an event's id. Raises malformed_request naming the header."""
    if not text:
        return {}
    if len(text) > _EVENT_ID_BYTES_MAX or not _EVENT_ID.fullmatch(text):
        raise _malformed(text, "partition:offset,... as events have it")
    pairs = _PAIR.findall(text)
    positions = {int(partition): int(offset) for partition, offset in pairs}
    if len(positions) != len(pairs) or max(positions) >= partitions:
        raise _malformed(text, f"each of the partitions 0 to {partitions - 1} once at most")
    return positions


def _malformed(text: str, allowed: str) -> ProblemError:
    return ProblemError(
        "malformed_request",
        f"header {Header.LAST_EVENT_ID} {shown(text)} is not understood; allowed: {allowed}",
        data={"parameter": Header.LAST_EVENT_ID, "value": text[:80], "allowed": allowed},
    )
