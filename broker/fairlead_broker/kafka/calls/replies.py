"""Replies of calls: a response, and what must be done once the response is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead_broker.kafka.protocol.errors import KafkaError
from fairlead_broker.kafka.protocol.messages import Response


def _nothing() -> None:
    return None


def _ignored(cut: Callable[[], None]) -> None:
    del cut


@dataclass(frozen=True, slots=True)
class Reply:
    """Response of a call."""

    response: Response
    release: Callable[[], None] = _nothing
    """Function that is called once, when the bytes of the response have left the broker or are dropped."""
    error: KafkaError | None = None
    """First error of a partition in the response, for metrics; None if the error of the whole response is counted
    instead."""
    record_bytes: int = 0
    """Number of bytes of records in the response, for quotas."""
    closes: bool = False
    """Whether the connection is closed after the response."""
    waits: Callable[[Callable[[], None]], None] = _ignored
    """Function that is called while the response waits for its client to read, with a function that closes the
    connection."""
