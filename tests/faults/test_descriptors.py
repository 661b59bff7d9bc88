"""A real broker with fewer file descriptors than partitions."""

from __future__ import annotations

from pathlib import Path
from resource import RLIMIT_NOFILE, prlimit

import pytest

from broker_kit import Calls
from broker_process import BrokerProcess
from fairlead_api.batch.batches import encode, record_batch

PARTITIONS = 50
TIME_US = 1_700_000_000_000_000


@pytest.mark.parametrize(("limit", "topics"), [(128, 3), pytest.param(256, 20, marks=pytest.mark.scenario)])
async def test_more_partitions_than_descriptors(tmp_path: Path, limit: int, topics: int) -> None:
    """A broker whose partitions outnumber its descriptors stores, syncs, starts again and reads every record.

    The broker itself raises the soft limit that it inherits from a shell.
    """
    broker = BrokerProcess(tmp_path / "data", prefix=("prlimit", f"--nofile={limit // 2}:{limit}"))
    batch = encode(record_batch([b"first"], default_timestamp_us=TIME_US)).to_bytes()
    places = [(f"t{topic}", partition) for topic in range(topics) for partition in range(PARTITIONS)]
    try:
        broker.start()
        async with Calls(broker.url) as calls:
            for topic in range(topics):
                await calls.create(f"t{topic}", PARTITIONS)
            stored = [(await calls.send(*place_batch(place, batch))).status for place in places]
        broker.kill()
        broker.start()
        async with Calls(broker.url) as calls:
            stored += [(await calls.send(*place_batch(place, batch))).status for place in places]
            values = [await calls.values(topic, partition) for topic, partition in places]
        soft, hard = prlimit(broker.pid, RLIMIT_NOFILE)
    finally:
        broker.kill()

    assert set(stored) == {200}
    assert values == [[b"first", b"first"]] * len(places)
    assert (soft, hard) == (limit, limit)


def place_batch(place: tuple[str, int], batch: bytes) -> tuple[str, bytes, int]:
    """Return the arguments of a produce call."""
    topic, partition = place
    return topic, batch, partition
