"""Reports of brokers about themselves: free disk space, the Kafka listener, and files of records cut from mirrors.

Clients request the reports of all brokers; each broker answers a call from another broker with its own report.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from fairlead_api.bodies.operations import BrokerReport, KafkaListenerReport, TailFile
from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.log import kept_tails
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration
from fairlead_broker.runtime.engine.disk_pool import DiskPool


class Reports:
    """This broker's report, and the reports of all registered brokers."""

    def __init__(
        self,
        data: Path,
        disk: DiskPool,
        brokers: Callable[[], Mapping[BrokerId, Versioned[BrokerRegistration]]],
        peers: Peers,
    ) -> None:
        """`data`: the data directory; `brokers` returns the current registrations."""
        self._data = data
        self._disk = disk
        self._brokers = brokers
        self._peers = peers
        self._kafka: Callable[[str], KafkaListenerReport] | None = None

    def include_kafka(self, listener: Callable[[str], KafkaListenerReport]) -> None:
        """Include the Kafka listener, which starts after the broker, in this broker's reports.

        `listener` returns the state of the listener, given the advertised address.
        """
        self._kafka = listener

    async def own(self) -> BrokerReport:
        """Return this broker's report, without disk space if the volume cannot be read."""
        broker = self._peers.own.broker
        registered = self._brokers().get(broker)
        address = None if registered is None else registered.value.addresses.kafka
        kafka = None if self._kafka is None or address is None else self._kafka(address)
        try:
            volume = await self._disk.submit(shutil.disk_usage, self._data)
            tails = await self._disk.submit(kept_tails, self._data)
        except OSError:
            return BrokerReport(broker=broker, kafka=kafka)
        return BrokerReport(
            broker=broker,
            disk_total_bytes=volume.total,
            disk_free_bytes=volume.free,
            kafka=kafka,
            tails=[
                TailFile(
                    topic_id=tail.key.topic_id,
                    partition=tail.key.partition,
                    first_offset=tail.first_offset,
                    size_bytes=tail.size_bytes,
                    path=str(tail.path),
                )
                for tail in tails
            ],
        )

    async def all(self) -> list[BrokerReport]:
        """Return the report of each registered broker, by id; the report of a broker without an answer is empty."""
        return await asyncio.gather(*(self._of(broker) for broker in sorted(self._brokers())))

    async def _of(self, broker: BrokerId) -> BrokerReport:
        if broker == self._peers.own.broker:
            return await self.own()
        try:
            return await self._peers.report(broker)
        except (PeerUnavailable, ProblemError):
            return BrokerReport(broker=broker)
