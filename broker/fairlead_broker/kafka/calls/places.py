"""Where the partitions, brokers and topics of a request are: Kafka addresses of brokers, leaders, topics by name or id.

Every family of calls uses this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.runtime import Broker, TopicView

NO_ID: Final = UUID(int=0)
"""Topic id of messages without a topic id."""


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Address of a broker for Kafka's clients."""

    host: str
    port: int
    rack: str | None


class RefusedError(Exception):
    """Refusal of one topic or partition in a request, with Kafka's error."""

    def __init__(self, error: KafkaError, detail: str | None = None) -> None:
        super().__init__(error.name, detail)
        self.error = error
        self.detail = detail


@contextmanager
def answering(result: Any, family: Family) -> Iterator[None]:
    """Set the error and the message of a result if the block is refused.

    A refusal is a `RefusedError`, or a problem, whose error depends on the family.
    """
    try:
        yield
    except RefusedError as refused:
        result.error_code, result.error_message = refused.error, refused.detail
    except ProblemError as problem:
        result.error_code, result.error_message = error_of(problem, family), problem.detail


def kafka_brokers(broker: Broker) -> dict[BrokerId, KafkaAddress]:
    """Return the registered brokers that have a Kafka address, ordered by id."""
    found = {}
    for number, registered in sorted(broker.metadata.brokers.items()):
        address = registered.value.addresses.kafka
        if address:
            host, _, port = address.rpartition(":")
            found[number] = KafkaAddress(host.strip("[]"), int(port), registered.value.rack)
    return found


def offline_replicas(broker: Broker, record: PartitionRecord) -> list[int]:
    """Return the replicas whose broker is not registered or whose directory is not healthy."""
    registrations = broker.metadata.brokers
    offline: list[int] = []
    for replica in record.replicas:
        registered = registrations.get(replica.broker)
        if registered is None or (
            replica.directory and all(each.id != replica.directory for each in registered.value.directories)
        ):
            offline.append(replica.broker)
    return offline


def leader_of(view: TopicView, index: int) -> tuple[int, int]:
    """Return the leader of a partition and its epoch, each -1 if unknown."""
    record = view.partitions.get(PartitionIndex(index))
    if record is None or record.leader is None:
        return -1, -1 if record is None else record.leader_epoch
    return record.leader.broker, record.leader_epoch


class TopicFinder:
    """Topics of one request, found by name or id, with the caller's access to each; each topic is looked up once."""

    def __init__(self, broker: Broker, call: KafkaCall, operation: Operation) -> None:
        """`operation`: operation that the caller must be allowed on each topic."""
        self._broker = broker
        self._call = call
        self._operation = operation

    def find(self, name: str | None, topic_id: UUID | None) -> TopicView:
        """Return a topic by its id, or by its name if the id is None. Raises RefusedError."""
        if topic_id is not None:
            return self._by_id(topic_id)
        if name is None:
            # The library decodes the topic id of zeros, which no topic has, as None.
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_ID)
        access = self._call.access
        if not access.allows(self._operation, Kind.TOPIC, name):
            raise RefusedError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        try:
            return self._broker.views.by_name(name)
        except ProblemError as problem:
            raise RefusedError(error_of(problem, Family.DATA), problem.detail) from problem

    def _by_id(self, topic_id: UUID) -> TopicView:
        access = self._call.access
        try:
            view = self._broker.views.by_id(TopicId(str(topic_id)))
        except ProblemError as problem:
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_ID, problem.detail) from problem
        if access.allows(self._operation, Kind.TOPIC, view.name):
            return view
        if not access.sees(Kind.TOPIC, view.name):
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_ID)
        raise RefusedError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def node_endpoints(brokers: Mapping[BrokerId, KafkaAddress], leaders: set[int]) -> list[dict[str, object]]:
    """Return the fields for the endpoints of the leaders that a response names."""
    return [
        {"node_id": number, "host": each.host, "port": each.port, "rack": each.rack}
        for number, each in brokers.items()
        if number in leaders
    ]
