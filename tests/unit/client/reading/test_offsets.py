"""An offset lookup waits until a new leader can return the end of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fairlead import Consumer, TopicPartition
from fairlead.errors import OffsetNotAvailableError
from fairlead_api.bodies.media_types import JSON
from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    from conftest import Received, Reply, ScriptedBroker

LOOKUP = "/v1/offsets:lookup"
PLACE = TopicPartition("flights", 0)


def answer(offset: int | None, code: str | None = None) -> Reply:
    """Return the answer for one partition."""
    part: dict[str, object] = {
        "topic": "flights", "topic_id": None, "partition": 0, "offset": offset, "timestamp": None,
    }  # fmt: skip
    if code is not None:
        part["problem"] = ProblemError(code, "scripted").to_document()
    return 200, {"content-type": JSON}, msgspec.json.encode({"partitions": [part]})


async def test_an_end_that_is_not_known_yet_is_waited_for(broker: ScriptedBroker) -> None:
    """A lookup of a log end waits until the new leader has determined the log end."""

    async def unknown(_: Received) -> Reply:
        """Answer as a new leader that does not know its log end yet."""
        return answer(None, "offset_not_available")

    async def known(_: Received) -> Reply:
        """Answer as a leader that has determined its log end."""
        return answer(41)

    broker.refuse(LOOKUP, "offset_not_available")
    broker.script(LOOKUP, unknown, known)
    async with Consumer(broker.url) as consumer:
        await consumer.assign([PLACE], start=0)

        assert await consumer.end_offsets() == {PLACE: 41}
    assert len(broker.received(LOOKUP)) == 3


async def test_waiting_for_an_end_has_an_end(broker: ScriptedBroker) -> None:
    """The last refusal of an offset lookup is raised after the retry timeout."""
    broker.refuse(LOOKUP, *["offset_not_available"] * 200)
    async with Consumer(broker.url, retry_timeout="300ms") as consumer:
        await consumer.assign([PLACE], start=0)
        with pytest.raises(OffsetNotAvailableError):
            await consumer.end_offsets()
