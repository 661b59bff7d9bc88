"""Operations on brokers and partitions: cordon, drain, restart, move, elect.

Callers: ``application`` for the routes named in ``endpoints``. `ClusterOperations` decides whether an operation is
possible; calls that change the cluster run on the controller, to which they are forwarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from fastapi import Response

from fairlead_api.bodies.metadata import BrokerDescription, Page
from fairlead_api.bodies.operations import (
    ElectRequest,
    PartitionState,
    ReassignmentDescription,
    ReassignRequest,
    RestartPermitAnswer,
)
from fairlead_api.bodies.requests import decode_request
from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId, TopicIdPartition
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.server.admin.cluster import with_urls
from fairlead_broker.server.admin.configs import broker_in_path
from fairlead_broker.server.http.call import Call, json_body
from fairlead_broker.server.http.paging import page
from fairlead_broker.server.http.responses import AdminEndpoint, CurrentCall, json_response


class OperationCalls:
    """The calls of operators."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, AdminEndpoint]:
        """The endpoint of each route of this family, by route name."""
        return {
            "cordon_broker": self.cordon_broker,
            "uncordon_broker": self.uncordon_broker,
            "drain_broker": self.drain_broker,
            "undrain_broker": self.undrain_broker,
            "request_restart": self.request_restart,
            "unregister_broker": self.unregister_broker,
            "reassign_partition": self.reassign_partition,
            "cancel_reassignment": self.cancel_reassignment,
            "elect_leader": self.elect_leader,
            "list_reassignments": self.list_reassignments,
        }

    async def cordon_broker(self, call: CurrentCall) -> Response:
        """``POST /v1/brokers/{broker}:cordon``."""
        return await self._change_broker(call, self._broker.operations.cordon)

    async def uncordon_broker(self, call: CurrentCall) -> Response:
        """``POST /v1/brokers/{broker}:uncordon``."""
        return await self._change_broker(call, self._broker.operations.uncordon)

    async def drain_broker(self, call: CurrentCall) -> Response:
        """``POST /v1/brokers/{broker}:drain``."""
        return await self._change_broker(call, self._broker.operations.drain)

    async def undrain_broker(self, call: CurrentCall) -> Response:
        """``POST /v1/brokers/{broker}:undrain``."""
        return await self._change_broker(call, self._broker.operations.undrain)

    async def request_restart(self, call: CurrentCall) -> Response:
        """``POST /v1/brokers/{broker}:request-restart``."""
        permit = await self._broker.operations.request_restart(broker_in_path(call))
        return json_response(RestartPermitAnswer(broker=permit.broker, seconds=permit.seconds))

    async def unregister_broker(self, call: CurrentCall) -> Response:
        """``DELETE /v1/brokers/{broker}``."""
        await self._broker.operations.unregister(broker_in_path(call))
        return Response(status_code=204)

    async def reassign_partition(self, call: CurrentCall) -> Response:
        """``POST .../partitions/{partition}:reassign``."""
        request = decode_request(ReassignRequest, await json_body(call))
        replicas = [BrokerId(broker) for broker in request.replicas]
        operations = self._broker.operations
        return self._state(
            call, await operations.reassign(call.topic, call.partition, replicas, call.topic_id)
        )

    async def cancel_reassignment(self, call: CurrentCall) -> Response:
        """``DELETE .../partitions/{partition}/reassignment``."""
        operations = self._broker.operations
        return self._state(
            call, await operations.cancel_reassignment(call.topic, call.partition, call.topic_id)
        )

    async def elect_leader(self, call: CurrentCall) -> Response:
        """``POST .../partitions/{partition}:elect``."""
        request = decode_request(ElectRequest, await json_body(call))
        kind, operations = ElectionKind(request.kind), self._broker.operations
        return self._state(call, await operations.elect(call.topic, call.partition, kind, call.topic_id))

    async def list_reassignments(self, call: CurrentCall) -> Response:
        """``GET /v1/reassignments``."""
        moves = [
            ReassignmentDescription(
                topic=move.topic,
                topic_id=move.topic_id,
                partition=move.partition,
                replicas=list(move.replicas),
                adding=list(move.adding),
                removing=list(move.removing),
                isr=list(move.isr),
            )
            for move in self._broker.operations.reassignments()
        ]
        chosen, following = page(
            moves,
            # A space sorts before everything that a topic's name may have.
            lambda move: f"{move.topic} {move.partition:010d}",
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        keys = [TopicIdPartition(TopicId(each.topic_id), PartitionIndex(each.partition)) for each in chosen]
        progress = await self._broker.move_progress.of(keys)
        items = [
            msgspec.structs.replace(each, progress=tuple(progress.get(key, ())))
            for key, each in zip(keys, chosen, strict=True)
        ]
        return json_response(Page(items=items, next=following))

    async def _change_broker(self, call: Call, change: Callable[[BrokerId], Awaitable[None]]) -> Response:
        broker = broker_in_path(call)
        await change(broker)
        return json_response(self._description(broker))

    def _description(self, broker: BrokerId) -> BrokerDescription:
        """The broker as it is registered; one that is gone has no address."""
        for found in with_urls(self._broker.known_brokers()):
            if found.id == broker:
                return found
        return BrokerDescription(id=broker, address=None, state="gone")

    def _state(self, call: Call, record: PartitionRecord) -> Response:
        return json_response(
            PartitionState(
                topic=call.topic,
                topic_id=self._broker.views.by_name(call.topic).topic_id,
                partition=call.partition,
                leader=None if record.leader is None else record.leader.broker,
                leader_epoch=record.leader_epoch,
                replicas=[replica.broker for replica in record.replicas],
                adding=list(record.adding),
                removing=list(record.removing),
                isr=[entry.broker for entry in record.isr],
                elr=[entry.broker for entry in record.elr],
            )
        )
