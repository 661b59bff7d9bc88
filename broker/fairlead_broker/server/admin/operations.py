"""Operations on brokers and partitions: cordon, drain, restart, move, elect.

Callers: ``application`` for the routes named in ``endpoints``. `ClusterOperations` decides whether an operation is
possible; calls that change the cluster are forwarded to the controller, which executes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.metadata import (
    BrokerDescription,
    Page,
    PartitionDescription,
    ReplicaStanding,
)
from fairlead_api.bodies.operations import (
    ElectRequest,
    PartitionState,
    ReassignmentDescription,
    ReassignRequest,
    RestartPermitAnswer,
    TopicSizes,
)
from fairlead_api.bodies.requests import decode_request
from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId, TopicIdPartition
from fairlead_broker.controller.election import in_sync_brokers
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.runtime import Broker, refusals
from fairlead_broker.server.admin.cluster import partition_metadata
from fairlead_broker.server.admin.configs import broker_in_path
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.paging import page
from fairlead_broker.server.http.request_target import not_found
from fairlead_broker.server.routing.locate import topic_of


class OperationCalls:
    """Endpoints of the operations on brokers and partitions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "cordon_broker": self.cordon_broker,
            "uncordon_broker": self.uncordon_broker,
            "drain_broker": self.drain_broker,
            "undrain_broker": self.undrain_broker,
            "request_restart": self.request_restart,
            "unregister_broker": self.unregister_broker,
            "describe_partition": self.describe_partition,
            "reassign_partition": self.reassign_partition,
            "cancel_reassignment": self.cancel_reassignment,
            "elect_leader": self.elect_leader,
            "list_reassignments": self.list_reassignments,
            "list_replica_sizes": self.list_replica_sizes,
            "list_broker_reports": self.list_broker_reports,
        }

    async def cordon_broker(self, call: Call) -> None:
        """``POST /v1/brokers/{broker}:cordon``."""
        return await self._change_broker(call, self._broker.operations.cordon)

    async def uncordon_broker(self, call: Call) -> None:
        """``POST /v1/brokers/{broker}:uncordon``."""
        return await self._change_broker(call, self._broker.operations.uncordon)

    async def drain_broker(self, call: Call) -> None:
        """``POST /v1/brokers/{broker}:drain``."""
        return await self._change_broker(call, self._broker.operations.drain)

    async def undrain_broker(self, call: Call) -> None:
        """``POST /v1/brokers/{broker}:undrain``."""
        return await self._change_broker(call, self._broker.operations.undrain)

    async def request_restart(self, call: Call) -> None:
        """``POST /v1/brokers/{broker}:request-restart``."""
        permit = await self._broker.operations.request_restart(broker_in_path(call))
        await call.answer_json(RestartPermitAnswer(broker=permit.broker, seconds=permit.seconds))

    async def unregister_broker(self, call: Call) -> None:
        """``DELETE /v1/brokers/{broker}``."""
        await self._broker.operations.unregister(broker_in_path(call))
        await call.answer(HTTPStatus.NO_CONTENT, [])

    async def describe_partition(self, call: Call) -> None:
        """``GET .../partitions/{partition}``."""
        partition = partition_in_path(call)
        view = topic_of(call, self._broker)
        if partition >= view.partition_count:
            raise refusals.partition_not_found(view.name, partition, view.partition_count)
        record = view.partitions.get(partition)
        described = partition_metadata(partition, record, self._broker.metadata.brokers)
        standings = [] if record is None else await self._standings(view.topic_id, partition, record)
        await call.answer_json(PartitionDescription(**msgspec.structs.asdict(described), standings=standings))

    async def _standings(
        self, topic_id: TopicId, partition: PartitionIndex, record: PartitionRecord
    ) -> list[ReplicaStanding]:
        """Return the replicas of a partition with a write quorum as known to the leader (quorum Q18)."""
        if record.quorum is None:
            return []
        found = {}
        if record.leader is not None:
            key = TopicIdPartition(topic_id, partition)
            for reported in await self._broker.voters.of(record.leader.broker, [key]):
                found = {each.broker: each for each in reported.replicas}
        return [
            ReplicaStanding(
                broker=replica.broker,
                counted=None if known is None else known.counted,
                near=None if known is None else known.near,
                entry_is_current=None if known is None else known.entry_is_current,
            )
            for replica in record.replicas
            for known in [found.get(replica.broker)]
        ]

    async def reassign_partition(self, call: Call) -> None:
        """``POST .../partitions/{partition}:reassign``."""
        request = decode_request(ReassignRequest, await json_body(call))
        partition, replicas = partition_in_path(call), [BrokerId(broker) for broker in request.replicas]
        record = await self._broker.operations.reassign(call.topic, partition, replicas, call.topic_id)
        await call.answer_json(self._state(call.topic, partition, record))

    async def cancel_reassignment(self, call: Call) -> None:
        """``DELETE .../partitions/{partition}/reassignment``."""
        partition = partition_in_path(call)
        record = await self._broker.operations.cancel_reassignment(call.topic, partition, call.topic_id)
        await call.answer_json(self._state(call.topic, partition, record))

    async def elect_leader(self, call: Call) -> None:
        """``POST .../partitions/{partition}:elect``."""
        request = decode_request(ElectRequest, await json_body(call))
        partition, kind = partition_in_path(call), ElectionKind(request.kind)
        if kind is ElectionKind.UNCLEAN:
            call.access.require(Operation.DELETE, Kind.TOPIC, call.topic)
        record = await self._broker.operations.elect(call.topic, partition, kind, call.topic_id)
        await call.answer_json(self._state(call.topic, partition, record))

    async def list_reassignments(self, call: Call) -> None:
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
            if call.access.sees(Kind.TOPIC, move.topic)
        ]
        chosen, following = page(
            moves,
            # In sort order, a space precedes every character that a topic name may contain.
            lambda move: f"{move.topic} {move.partition:010d}",
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        keys = [TopicIdPartition(TopicId(each.topic_id), PartitionIndex(each.partition)) for each in chosen]
        progress = await self._broker.cluster_logs.progress(keys)
        items = [
            msgspec.structs.replace(each, progress=tuple(progress.get(key, ())))
            for key, each in zip(keys, chosen, strict=True)
        ]
        await call.answer_json(Page(items=items, next=following))

    async def list_replica_sizes(self, call: Call) -> None:
        """``GET /v1/replica-sizes``."""
        wanted = call.query.text_or_none("topic")
        chosen, following = page(
            [
                view
                for view in self._broker.views.all()
                if wanted in (None, view.name) and call.access.sees(Kind.TOPIC, view.name)
            ],
            lambda view: view.name,
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        sizes = await self._broker.cluster_logs.sizes([view.topic_id for view in chosen])
        items = [
            TopicSizes(topic=view.name, topic_id=view.topic_id, partitions=sizes[view.topic_id])
            for view in chosen
        ]
        await call.answer_json(Page(items=items, next=following))

    async def list_broker_reports(self, call: Call) -> None:
        """``GET /v1/broker-reports``."""
        chosen, following = page(
            await self._broker.reports.all(),
            lambda report: f"{report.broker:010d}",
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        await call.answer_json(Page(items=chosen, next=following))

    async def _change_broker(self, call: Call, change: Callable[[BrokerId], Awaitable[None]]) -> None:
        broker = broker_in_path(call)
        await change(broker)
        await call.answer_json(self._description(call, broker))

    def _description(self, call: Call, broker: BrokerId) -> BrokerDescription:
        """Return the description of a broker; a broker that is not registered gets the state `gone`."""
        for found in self._broker.known_brokers(call.caller_side):
            if found.id == broker:
                return found
        return BrokerDescription(id=broker, address=None, state="gone")

    def _state(self, topic: str, partition: PartitionIndex, record: PartitionRecord) -> PartitionState:
        """Return the state of a partition in the API's format."""
        return PartitionState(
            topic=topic,
            topic_id=self._broker.views.by_name(topic).topic_id,
            partition=partition,
            leader=None if record.leader is None else record.leader.broker,
            leader_epoch=record.leader_epoch,
            replicas=[replica.broker for replica in record.replicas],
            adding=list(record.adding),
            removing=list(record.removing),
            isr=list(in_sync_brokers(record, self._broker.metadata.brokers)),
            elr=[entry.broker for entry in record.elr],
        )


def partition_in_path(call: Call) -> PartitionIndex:
    """Return the partition in the path.

    Raises route_not_found for an empty segment, and malformed_request for an invalid partition.
    """
    if not call.parameters["partition"]:
        raise not_found(call.raw_path)
    return call.partition
