"""A rolling upgrade to the next release under load, and a downgrade before the feature level is raised (rule Z17)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster_kit import Cluster
from fairlead import Consumer, Producer
from fairlead_broker.coordination import bootstrap
from fairlead_broker.coordination.bootstrap import FeatureLevelTooHigh
from fairlead_broker.runtime.lifecycle import cluster_entry
from waiting import until

BROKERS = (1, 2, 3)
RECORDS_A_STEP = 30


class Load:
    """A producer and a consumer of a group that work while brokers restart."""

    def __init__(self, bootstrap_addresses: list[str]) -> None:
        self._bootstrap = bootstrap_addresses
        self._done = asyncio.Event()
        self.sent: list[bytes] = []
        self.read: set[bytes] = set()

    async def run(self) -> None:
        """Produce until the load is stopped, and consume until every record is read."""
        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(self._consume())
            await self._produce()
            await until(lambda: len(self.read) >= len(self.sent))
            consuming.cancel()

    async def _produce(self) -> None:
        async with Producer(self._bootstrap, linger_ms=0, acks="all") as producer:
            while not self._done.is_set():
                value = b"%d" % len(self.sent)
                await producer.send_and_wait("orders", value)
                self.sent.append(value)

    async def _consume(self) -> None:
        async with Consumer(self._bootstrap, group="billing", topics="orders") as consumer:
            async for record in consumer.records():
                assert record.value is not None
                self.read.add(record.value)

    async def goes_on(self) -> None:
        """Wait until further records have been written."""
        before = len(self.sent)
        await until(lambda: len(self.sent) >= before + RECORDS_A_STEP, 60)

    def end(self) -> None:
        """End the load."""
        self._done.set()


@pytest.mark.slow
@pytest.mark.scenario
async def test_an_upgrade_can_be_undone_until_the_level_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of two releases serve together in both directions; after the level is raised, older brokers cannot start.

    No record is lost in three rolling restarts.
    """
    level = bootstrap.FEATURE_LEVEL
    cluster = await Cluster.open(tmp_path)

    async def roll(supported: int, load: Load) -> None:
        for broker in BROKERS:
            address = str(cluster.brokers[broker].addresses.data)
            await cluster.stop(broker)
            for module in (bootstrap, cluster_entry):
                monkeypatch.setattr(module, "FEATURE_LEVEL", supported)
            await cluster.start(broker, listen=address)
            await load.goes_on()

    try:
        await cluster.start(*BROKERS)
        await cluster.topic("orders", partitions=3, min_insync_replicas=2)
        load = Load([f"http://{each.addresses.data}" for each in cluster.brokers.values()])
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await load.goes_on()
            await roll(level + 1, load)
            await roll(level, load)
            await roll(level + 1, load)
            raised = await cluster.controller.alter_cluster_config({"feature.level": level + 1})
            await cluster.stop(3)
            monkeypatch.setattr(bootstrap, "FEATURE_LEVEL", level)
            with pytest.raises(FeatureLevelTooHigh):
                await cluster.start(3)
            await load.goes_on()
            load.end()

        assert raised["feature.level"].value == str(level + 1)
        assert load.read == set(load.sent)
    finally:
        await cluster.close()
