"""Media types of bodies, and names of Fairlead's own headers.

The broker and the client use this module. This module must not depend on which call supports which media type; the
routes define the media types.
"""

from __future__ import annotations

from typing import Final

BATCHES: Final = "application/vnd.fairlead.batches"
"""Stored record batches of one partition, concatenated and unchanged."""
FRAMES_ESSENCE: Final = "application/vnd.fairlead.frames"
FRAMES_VERSION: Final = 1
FRAMES: Final = "application/vnd.fairlead.frames;v=1"
"""Batches of many partitions, each preceded by JSON metadata."""
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
"""Columns of the records as a plain Arrow IPC stream."""
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CLOUD_EVENT: Final = "application/cloudevents+json"
"""One CloudEvent in structured mode."""
CLOUD_EVENTS: Final = "application/cloudevents-batch+json"
PROBLEM: Final = "application/problem+json"
EVENT_STREAM: Final = "text/event-stream"
HTML: Final = "text/html"
TEXT: Final = "text/plain"
STYLES: Final = "text/css"
SCRIPT: Final = "text/javascript"
PNG: Final = "image/png"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


class Header:
    """Names of the headers that the contract defines, spelled as in answers.

    HTTP header names are case-insensitive; HTTP/2 transmits header names in lower case.
    """

    PRODUCER_ID: Final = "Fairlead-Producer-Id"
    PRODUCER_EPOCH: Final = "Fairlead-Producer-Epoch"
    BASE_SEQUENCE: Final = "Fairlead-Base-Sequence"
    NEXT_OFFSET: Final = "Fairlead-Next-Offset"
    HIGH_WATERMARK: Final = "Fairlead-High-Watermark"
    LOG_START_OFFSET: Final = "Fairlead-Log-Start-Offset"
    LAST_STABLE_OFFSET: Final = "Fairlead-Last-Stable-Offset"
    LEADER_EPOCH: Final = "Fairlead-Leader-Epoch"
    TOPIC_ID: Final = "Fairlead-Topic-Id"
    FORWARD: Final = "Fairlead-Forward"
    DUPLICATE: Final = "Fairlead-Duplicate"
    TRANSACTION: Final = "Fairlead-Transaction"
    COMMIT_TRANSACTION: Final = "Fairlead-Commit-Transaction"
    IDEMPOTENCY_KEY: Final = "Idempotency-Key"
    LAST_EVENT_ID: Final = "Last-Event-ID"
    THROTTLE_MS: Final = "Fairlead-Throttle-Ms"


FORWARD_NEVER: Final = "never"
"""Value of `Fairlead-Forward` with which a client requests status 421 instead of forwarding."""


def essence(media_type: str) -> str:
    """Return a media type in lower case, without parameters: `Text/Plain; charset=utf-8` becomes `text/plain`."""
    return media_type.partition(";")[0].strip().lower()
