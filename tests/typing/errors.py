"""A program that handles errors by kind, by code and with their data, for type checkers; no test runs it."""

from __future__ import annotations

from typing import assert_type

from fairlead import FairleadError, Producer, errors


async def handle(producer: Producer) -> None:
    """Handle errors, each of which is a FairleadError with the next step."""
    try:
        await producer.send_and_wait("flights", b"1545")
    except errors.TopicNotFoundError as missing:
        assert_type(missing.code, str)
        assert_type(missing.retryable, bool)
    except FairleadError as error:
        assert_type(str(error), str)
