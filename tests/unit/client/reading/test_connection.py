"""The connection of a connector: the current topics of the cluster by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlead.errors import TopicNotFoundError
from fairlead.reading.connection import ReadConnection

if TYPE_CHECKING:
    from conftest import ScriptedBroker


async def test_missing_topics_are_refused_or_left_out(broker: ScriptedBroker) -> None:
    """With `missing_ok`, a connector gets the topics that exist, and an empty list of names causes no request."""
    async with ReadConnection(broker.url) as connection:
        existing = await connection.topic_names()
        found = await connection.topics([*existing, "absent"], missing_ok=True)
        before = len(broker.received("/v1/metadata"))
        none = await connection.topics([])
        asked = len(broker.received("/v1/metadata")) - before
        with pytest.raises(TopicNotFoundError) as refused:
            await connection.topics([*existing, "absent"])

    assert existing
    assert sorted(found) == sorted(existing)
    assert (none, asked) == ({}, 0)
    assert refused.value.data["topic"] == "absent"
