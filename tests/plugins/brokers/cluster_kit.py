"""Several brokers in one process over one embedded store; tests start, stop and inspect the brokers one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

import waiting
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.configuration import ConfigInput
from fairlead_api.identifiers import BrokerId, Offset, PartitionIndex, TopicId
from fairlead_broker.clock import SystemClock
from fairlead_broker.controller.election import in_sync_brokers
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.log import PartitionLog
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import RunningBroker, acquaint, start_broker
from runtime_kit import TopicClient
from shown_tokens import SearchedLogger

FREE = "127.0.0.1:0"
SECONDS_MAX = 60.0
"""Timeout of each wait in seconds, long because a loaded machine is slow."""
QUIET = structlog.wrap_logger(SearchedLogger(), processors=[])


async def until(met: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds, by polling, because no event announces it."""
    try:
        await waiting.until(met, SECONDS_MAX)
    except TimeoutError:
        raise AssertionError(what) from None


@dataclass
class Cluster:
    """Brokers by id, each with a separate folder."""

    path: Path
    store: EmbeddedCoordination
    brokers: dict[int, RunningBroker] = field(default_factory=dict)

    @classmethod
    async def open(cls, path: Path) -> Cluster:
        """Open the store, without a broker."""
        return cls(path, await EmbeddedCoordination.open(path / "coordination.sqlite", SystemClock()))

    async def start(self, *ids: int, **settings: object) -> None:
        """Start brokers, or restart them; return when the running brokers see each other."""
        for broker in ids:
            self.brokers[broker] = await start_broker(
                BrokerSettings(
                    **{  # type: ignore[arg-type]
                        "id": broker,
                        "data": self.path / str(broker),
                        "listen": FREE,
                        "peer_listen": FREE,
                        "ops_listen": FREE,
                        **settings,
                    }
                ),
                log=QUIET,
                coordination=self.store.connect(),
            )
        await acquaint(self.brokers.values())

    async def stop(self, broker: int) -> None:
        """Stop one broker gracefully."""
        await self.brokers.pop(broker).stop()

    async def close(self) -> None:
        """Stop all brokers and close the store."""
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        self.brokers.clear()
        await self.store.close()

    # -- inspection

    def broker(self, broker: int) -> Broker:
        """Return a broker without its listeners."""
        return self.brokers[broker].broker

    @property
    def any(self) -> Broker:
        """Any running broker."""
        return next(iter(self.brokers.values())).broker

    @property
    def controller(self) -> Broker:
        """The broker that is the controller."""
        controller = self.any.peer_side.controller
        assert controller is not None, "no broker is the controller"
        return self.broker(controller)

    async def topic(
        self, name: str, partitions: int = 1, replication_factor: int = 3, **config: ConfigInput
    ) -> TopicId:
        """Create a topic; return when every broker sees the topic."""
        request = CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            config={key.replace("_", "."): value for key, value in config.items()},
        )
        view, _ = await self.controller.create_topic(request)
        await until(
            lambda: all(
                len(each.broker.metadata.partitions(view.topic_id)) == partitions
                for each in self.brokers.values()
            ),
            f"not every broker knows {name}",
        )
        return view.topic_id

    def record(self, topic_id: TopicId, partition: int = 0) -> PartitionRecord:
        """Return a partition's record from the mirror of a running broker."""
        return self.any.metadata.partitions(topic_id)[PartitionIndex(partition)].value

    def leader(self, topic_id: TopicId, partition: int = 0) -> BrokerId | None:
        """Return the leader that the record of a partition names."""
        leader = self.record(topic_id, partition).leader
        return leader.broker if leader else None

    async def led(self, name: str, topic_id: TopicId, partition: int = 0) -> TopicClient:
        """Return a client of the leader, once a running broker leads."""

        def serves() -> bool:
            leader = self.leader(topic_id, partition)
            return leader in self.brokers and any(
                each.index == partition for each in self.broker(leader).replicas.of_topic(topic_id)
            )

        await until(serves, f"no broker leads {name}-{partition}")
        leader = self.leader(topic_id, partition)
        assert leader is not None
        return TopicClient(self.broker(leader), name)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all running brokers."""
        samples = (
            each.broker.telemetry.registry.get_sample_value(name, labels) for each in self.brokers.values()
        )
        return sum(sample or 0.0 for sample in samples)

    def log(self, broker: int, topic_id: TopicId, partition: int = 0) -> PartitionLog:
        """Return a broker's log of a partition."""
        hosted = self.broker(broker).replicas._hosted
        return hosted[topic_id][PartitionIndex(partition)].log

    async def in_sync(self, topic_id: TopicId, *brokers: int, partition: int = 0) -> None:
        """Wait until the ISR, or the live voters of a write quorum, are exactly these brokers."""
        wanted = set(brokers)

        def met() -> bool:
            present = in_sync_brokers(self.record(topic_id, partition), self.any.metadata.brokers)
            return set(present) == wanted

        await until(met, f"the isr is not {wanted}")

    async def copied(self, topic_id: TopicId, end: int, partition: int = 0) -> list[bytes]:
        """Wait until every running replica ends at an offset; return their bytes."""

        def met() -> bool:
            return self._ends(topic_id, partition) == {end}

        await until(met, f"not every copy ends at {end}")
        return [content(self.log(each, topic_id, partition)) for each in self.brokers]

    async def equal(self, topic_id: TopicId, after: Offset, partition: int = 0) -> list[bytes]:
        """Wait until all running replicas end at one offset, above a record's; return their bytes."""

        def met() -> bool:
            ends = self._ends(topic_id, partition)
            return len(ends) == 1 and min(ends) > after

        await until(met, f"not every copy ends at one offset above {after}")
        return [content(self.log(each, topic_id, partition)) for each in self.brokers]

    def _ends(self, topic_id: TopicId, partition: int) -> set[Offset]:
        """Return the end offsets of all running replicas; no offsets while a broker has not opened its log."""
        try:
            return {self.log(each, topic_id, partition).end_offset for each in self.brokers}
        except KeyError:
            return set()


def content(log: PartitionLog) -> bytes:
    """Return every byte of a log."""
    data, at = bytearray(), log.log_start_offset
    while at < log.end_offset:
        read = log.read(at, 1 << 20, log.end_offset)
        assert read.next_offset > at, "a read makes no progress"
        data += read.data
        at = Offset(read.next_offset)
    return bytes(data)
