"""Formats of the tail of a topic: one line per record (NDJSON), or one event per record (Server-Sent Events).

Callers: ``tail``. The id of an event contains the next offset of every partition, so a browser that reconnects with
``Last-Event-ID`` continues at its position.
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
"""Next offset of every partition."""


class TailFormat(Protocol):
    """Interface of an answer format. The positions advance as records are written."""

    def begin(self, positions: Positions) -> bytes:
        """Return the bytes before the first record."""

    def records(self, records: Iterable[FetchedRecord], positions: Positions) -> bytes:
        """Return the text of records, and advance the positions past each record."""

    def problem(self, problem: Mapping[str, object]) -> bytes:
        """Return the text of a problem."""

    def sign_of_life(self) -> bytes:
        """Return a keep-alive for an idle connection; empty if the format has no keep-alive."""


class LineFormat:
    """NDJSON format."""

    def begin(self, positions: Positions) -> bytes:
        """Return no bytes, because NDJSON needs no prefix."""
        del positions
        return b""

    def records(self, records: Iterable[FetchedRecord], positions: Positions) -> bytes:
        """Return one line per record, and advance the positions."""
        lines = []
        for record in records:
            positions[record.partition] = record.offset + 1
            lines.append(record)
        return msgspec.json.Encoder().encode_lines(lines)

    def problem(self, problem: Mapping[str, object]) -> bytes:
        """Return a line with the single member `problem`."""
        return msgspec.json.encode({"problem": problem}) + b"\n"

    def sign_of_life(self) -> bytes:
        """Return no bytes, because every NDJSON line is a record or a problem."""
        return b""


class EventFormat:
    """Server-Sent Events format: records are sent as `message` events, problems as `problem` events."""

    def begin(self, positions: Positions) -> bytes:
        """Return an event without data.

        A client that is disconnected before the first record resumes at its start position.
        """
        return b"id: %s\n\n" % event_id(positions)

    def records(self, records: Iterable[FetchedRecord], positions: Positions) -> bytes:
        """Return one event per record, and advance the positions."""
        events = []
        for record in records:
            positions[record.partition] = record.offset + 1
            events.append(b"id: %s\ndata: %s\n\n" % (event_id(positions), msgspec.json.encode(record)))
        return b"".join(events)

    def problem(self, problem: Mapping[str, object]) -> bytes:
        """Return an event of the type `problem`."""
        return b"event: problem\ndata: %s\n\n" % msgspec.json.encode({"problem": problem})

    def sign_of_life(self) -> bytes:
        """Return an empty comment, which keeps the connection alive."""
        return b":\n\n"


def tail_format(media_type: str) -> TailFormat:
    """Return the format for a media type of the route."""
    return EventFormat() if media_type == EVENT_STREAM else LineFormat()


def event_id(positions: Positions) -> bytes:
    """Return positions as ``partition:offset,...``, in order of partitions."""
    return ",".join(f"{partition}:{positions[partition]}" for partition in sorted(positions)).encode()


def parse_event_id(text: str, partitions: int) -> Positions:
    """Return the positions in an event id. Raises malformed_request with the header's name."""
    if not text:
        return {}
    if len(text) > _EVENT_ID_BYTES_MAX or not _EVENT_ID.fullmatch(text):
        raise _malformed(text, "partition:offset,... as in the id of an event")
    pairs = _PAIR.findall(text)
    positions = {int(partition): int(offset) for partition, offset in pairs}
    if len(positions) != len(pairs) or max(positions) >= partitions:
        raise _malformed(text, f"each of the partitions 0 to {partitions - 1} at most once")
    return positions


def _malformed(text: str, allowed: str) -> ProblemError:
    return ProblemError(
        "malformed_request",
        f"header {Header.LAST_EVENT_ID} {shown(text)} is not valid; allowed: {allowed}",
        data={"parameter": Header.LAST_EVENT_ID, "value": text[:80], "allowed": allowed},
    )
