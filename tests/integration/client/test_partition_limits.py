"""A broker's maximum number of replicas applies to topics that clients create."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.admin import Admin
from fairlead.errors import TooManyPartitionsError
from fairlead_broker.settings import BrokerSettings, Endpoint, Limits
from fairlead_broker.wiring.start import start_broker


async def test_a_topic_beyond_the_limit_of_a_broker_is_refused(tmp_path: Path) -> None:
    """A topic that exceeds the limit of a broker is refused with the limit and the current number of replicas."""
    anywhere = Endpoint("127.0.0.1", 0)
    settings = BrokerSettings(
        data=tmp_path, listen=anywhere, peer_listen=anywhere, ops_listen=anywhere,
        limits=Limits(partitions_max=3),
    )  # fmt: skip
    broker = await start_broker(settings)
    try:
        async with Admin(f"http://{broker.addresses.data}") as admin:
            await admin.create_topic("flights", partitions=2)
            with pytest.raises(TooManyPartitionsError) as refused:
                await admin.create_topic("airports", partitions=2)
            topics = [topic.name for topic in (await admin.list_topics())]
    finally:
        await broker.stop()

    assert (refused.value.data["limit"], refused.value.data["count"]) == (3, 2)
    assert topics == ["flights"]
