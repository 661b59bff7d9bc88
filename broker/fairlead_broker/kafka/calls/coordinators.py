"""FindCoordinator: the broker that coordinates a group or a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.identifiers import BrokerId, check_group_name
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import kafka_brokers
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import FindCoordinatorResponse
from fairlead_broker.runtime import Broker

MANY_SINCE: Final = 4
"""First version that can ask for several coordinators at once."""
GROUP_TYPE: Final = 0
TRANSACTION_TYPE: Final = 1


@dataclass(frozen=True, slots=True)
class _Found:
    error: KafkaError
    node_id: int = -1
    host: str = ""
    port: int = -1
    detail: str | None = None


class CoordinatorCalls:
    """Calls that find coordinators."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.FIND_COORDINATOR: self.find_coordinator}

    async def find_coordinator(self, call: KafkaCall) -> Reply:
        """Return the address of each group's coordinator."""
        version, request = call.version, call.request
        kind = request.key_type if version >= 1 else GROUP_TYPE
        if version >= MANY_SINCE:
            found = [
                (key, await self._find(call, kind, key)) for key in dict.fromkeys(request.coordinator_keys)
            ]
            coordinators = [
                FindCoordinatorResponse.Coordinator(
                    version=version,
                    key=key,
                    node_id=each.node_id,
                    host=each.host,
                    port=each.port,
                    error_code=each.error,
                    error_message=each.detail,
                )
                for key, each in found
            ]
            return Reply(FindCoordinatorResponse(version=version, coordinators=coordinators))
        each = await self._find(call, kind, request.key)
        return Reply(
            FindCoordinatorResponse(
                version=version,
                error_code=each.error,
                error_message=each.detail,
                node_id=each.node_id,
                host=each.host,
                port=each.port,
            )
        )

    async def _find(self, call: KafkaCall, kind: int, key: str) -> _Found:
        own = self._broker.peer_side.peers.own.broker
        if kind == TRANSACTION_TYPE:
            # Every broker can coordinate every transaction, so the client may send InitProducerId to this broker.
            return self._at(own)
        if kind != GROUP_TYPE:
            return _Found(
                KafkaError.INVALID_REQUEST, detail=f"key type {kind} is not known; allowed: 0 and 1"
            )
        try:
            call.access.require(Operation.DESCRIBE, Kind.GROUP, key)
            check_group_name(key)
            elsewhere = await self._broker.groups.coordinator_elsewhere(key)
        except ProblemError as problem:
            return _Found(error_of(problem, Family.GROUP), detail=problem.detail)
        return self._at(own if elsewhere is None else elsewhere)

    def _at(self, broker: BrokerId) -> _Found:
        """Return the Kafka address of a broker."""
        address = kafka_brokers(self._broker).get(broker)
        if address is None:
            detail = f"broker {broker} is the coordinator and has no Kafka listener"
            return _Found(KafkaError.COORDINATOR_NOT_AVAILABLE, detail=detail)
        return _Found(KafkaError.NONE, broker, address.host, address.port)
