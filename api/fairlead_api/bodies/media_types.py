"""The media types of bodies and the names of our own headers.

Read by server and client alike. Must not know which call speaks which type: the routes say that.
"""

from __future__ import annotations

from typing import Final

BATCHES: Final = "application/vnd.fairlead.batches"
"""Stored record batches of one partition, concatenated, untouched."""
FRAMES_ESSENCE: Final = "application/vnd.fairlead.frames"
FRAMES_VERSION: Final = 1
FRAMES: Final = "application/vnd.fairlead.frames;v=1"
"""Batches of many partitions, each after a small JSON head."""
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
"""The records' columns as a plain Arrow IPC stream."""
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CLOUD_EVENT: Final = "application/cloudevents+json"
"""One CloudEvent in its structured mode."""
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
    """Names of the headers that the contract adds to HTTP's, as they are written in answers.

    HTTP compares header names without regard to case; HTTP/2 carries them in lower case.
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
    IDEMPOTENCY_KEY: Final = "Idempotency-Key"
    LAST_EVENT_ID: Final = "Last-Event-ID"


FORWARD_NEVER: Final = "never"
"""Value of `Fairlead-Forward` by which a client asks for 421 rather than a hop."""


def essence(media_type: str) -> str:
    """Return a media type without its parameters, in lower case: `Text/Plain; charset=utf-8` is `text/plain`."""
    return media_type.partition(";")[0].strip().lower()
