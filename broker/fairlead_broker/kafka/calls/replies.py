"""Replies to calls: a response, and the resources that must be released once the response is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead_broker.kafka.protocol.messages import Response


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Reply:
    """Response of a call."""

    response: Response
    release: Callable[[], None] = _nothing
    """Function that is called once, when the response is passed to the socket or dropped."""
