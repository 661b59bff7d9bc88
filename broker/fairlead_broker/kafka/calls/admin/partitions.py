"""Partitions: ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.bodies.operations import BROKER_ID_MAX, ElectRequest, ReassignRequest
from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.kafka.calls.admin.changes import Change, Changed, Changes
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import RefusedError, answering
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.runtime import Broker

ELECTIONS: Final[Mapping[int, ElectionKind]] = {0: ElectionKind.PREFERRED, 1: ElectionKind.UNCLEAN}
"""Kinds of elections by Kafka's numbers."""
_NOT_ELECTED: Final[Mapping[ElectionKind, KafkaError]] = {
    ElectionKind.PREFERRED: KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionKind.UNCLEAN: KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""Error of each kind of election if no replica can lead."""


class PartitionCalls:
    """Calls that elect leaders and move replicas."""

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.ELECT_LEADERS: self.elect,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.reassign,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_reassignments,
        }

    # -- elections

    async def elect(self, call: KafkaCall) -> Reply:
        """Elect leaders of the requested partitions, or of all partitions if the request names none."""
        version, request = call.version, call.request
        kind = ELECTIONS.get(request.election_type if version >= 1 else 0)
        try:
            call.access.require(Operation.ALTER, Kind.CLUSTER, SINGLE_NAME)
        except ProblemError as problem:
            error = error_of(problem, Family.ADMIN)
            return Reply(ElectLeadersResponse(version=version, error_code=error, replica_election_results=[]))
        if kind is None:
            return Reply(
                ElectLeadersResponse(
                    version=version, error_code=KafkaError.INVALID_REQUEST, replica_election_results=[]
                )
            )
        named = request.topic_partitions
        results: dict[str, list[Any]] = defaultdict(list)
        for topic, index in self._all(call) if named is None else _named(named, "topic", "partitions"):
            error, detail = await self._elected(call, topic, index, kind)
            if named is not None or error is not KafkaError.ELECTION_NOT_NEEDED:
                results[topic].append(
                    ElectLeadersResponse.ReplicaElectionResult.PartitionResult(
                        version=version, partition_id=index, error_code=error, error_message=detail
                    )
                )
        return Reply(
            ElectLeadersResponse(
                version=version,
                error_code=KafkaError.NONE,
                replica_election_results=[
                    ElectLeadersResponse.ReplicaElectionResult(
                        version=version, topic=topic, partition_result=partitions
                    )
                    for topic, partitions in results.items()
                ],
            )
        )

    def _all(self, call: KafkaCall) -> Iterator[tuple[str, int]]:
        return (
            (view.name, int(index))
            for view in self._broker.views.all()
            if call.access.sees(Kind.TOPIC, view.name)
            for index in view.partitions
        )

    async def _elected(
        self, call: KafkaCall, topic: str, index: int, kind: ElectionKind
    ) -> tuple[KafkaError, str | None]:
        """Elect the leader of one partition; return the error and its reason."""
        partition = PartitionIndex(index)
        try:
            record = self._record(call, topic, index)
            if kind is ElectionKind.UNCLEAN:
                call.access.require(Operation.DELETE, Kind.TOPIC, topic)
            leader = record.leader
            if leader is not None and (
                kind is ElectionKind.UNCLEAN or leader.broker == record.replicas[0].broker
            ):
                return KafkaError.ELECTION_NOT_NEEDED, f"broker {leader.broker} leads {topic}-{index}"

            async def run() -> Changed:
                await self._broker.operations.elect(topic, partition, kind)
                return Changed()

            names = {"topic": topic, "partition": str(index)}
            await self._changes.make(call, Change("elect_leader", names, run, ElectRequest(kind=kind.value)))
        except RefusedError as refused:
            return refused.error, refused.detail
        except ProblemError as problem:
            if problem.code in ("not_possible_now", "no_leader"):
                return _NOT_ELECTED[kind], problem.detail
            return error_of(problem, Family.TOPIC), problem.detail
        return KafkaError.NONE, None

    # -- moves

    async def reassign(self, call: KafkaCall) -> Reply:
        """Begin and cancel moves of partitions."""
        version, kind = call.version, AlterPartitionReassignmentsResponse
        try:
            call.access.require(Operation.ALTER, Kind.CLUSTER, SINGLE_NAME)
        except ProblemError as problem:
            return Reply(
                kind(
                    version=version,
                    error_code=error_of(problem, Family.ADMIN),
                    error_message=problem.detail,
                    responses=[],
                )
            )
        responses = []
        for topic in call.request.topics:
            partitions = []
            for wanted in topic.partitions:
                response = kind.ReassignableTopicResponse.ReassignablePartitionResponse(
                    version=version, partition_index=wanted.partition_index, error_code=KafkaError.NONE
                )
                with answering(response, Family.TOPIC):
                    await self._reassign(call, topic.name, wanted)
                partitions.append(response)
            responses.append(
                kind.ReassignableTopicResponse(version=version, name=topic.name, partitions=partitions)
            )
        return Reply(kind(version=version, error_code=KafkaError.NONE, responses=responses))

    async def _reassign(self, call: KafkaCall, topic: str, wanted: Any) -> None:
        """Begin the move of a partition, or cancel it if the request names no replicas."""
        record = self._record(call, topic, wanted.partition_index)
        partition, operations = PartitionIndex(wanted.partition_index), self._broker.operations
        names = {"topic": topic, "partition": str(wanted.partition_index)}
        if wanted.replicas is None:
            if not record.adding and not record.removing:
                raise RefusedError(
                    KafkaError.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}-{partition} is not being moved"
                )

            async def cancel() -> Changed:
                await operations.cancel_reassignment(topic, partition)
                return Changed()

            await self._changes.make(call, Change("cancel_reassignment", names, cancel))
            return
        replicas = [BrokerId(each) for each in wanted.replicas]
        if any(not 0 <= each <= BROKER_ID_MAX for each in replicas):
            raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, "a broker id is not negative")
        keeps_count = call.version >= 1 and not call.request.allow_replication_factor_change
        count = len(record.replicas) - len(record.adding)
        if keeps_count and len(replicas) != count:
            raise RefusedError(
                KafkaError.INVALID_REPLICATION_FACTOR,
                f"{topic}-{partition} has {count} replicas, and the request names {len(replicas)}",
            )

        async def begin() -> Changed:
            await operations.reassign(topic, partition, replicas)
            return Changed(audited={"replicas": list(replicas)})

        request = ReassignRequest(replicas=list(replicas))
        try:
            await self._changes.make(call, Change("reassign_partition", names, begin, request))
        except ProblemError as problem:
            if problem.code == "broker_not_found":
                raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, problem.detail) from problem
            raise

    async def list_reassignments(self, call: KafkaCall) -> Reply:
        """Return the moves in progress, or those of the requested partitions."""
        version, kind = call.version, ListPartitionReassignmentsResponse
        asked = call.request.topics
        wanted = None if asked is None else set(_named(asked, "name", "partition_indexes"))
        found: dict[str, list[Any]] = defaultdict(list)
        for move in self._broker.operations.reassignments():
            place = (move.topic, int(move.partition))
            if (wanted is not None and place not in wanted) or not call.access.sees(Kind.TOPIC, move.topic):
                continue
            view = self._broker.views.by_name(move.topic)
            record = view.partitions[move.partition]
            found[move.topic].append(
                kind.OngoingTopicReassignment.OngoingPartitionReassignment(
                    version=version,
                    partition_index=move.partition,
                    replicas=[each.broker for each in record.replicas],
                    adding_replicas=list(move.adding),
                    removing_replicas=list(move.removing),
                )
            )
        topics = [
            kind.OngoingTopicReassignment(version=version, name=topic, partitions=partitions)
            for topic, partitions in found.items()
        ]
        return Reply(kind(version=version, error_code=KafkaError.NONE, topics=topics))

    def _record(self, call: KafkaCall, topic: str, index: int) -> PartitionRecord:
        """Return the record of a partition that the caller may describe. Raises RefusedError or a problem."""
        call.access.require(Operation.DESCRIBE, Kind.TOPIC, topic)
        record = self._broker.views.by_name(topic).partitions.get(PartitionIndex(index))
        if record is None:
            raise RefusedError(
                KafkaError.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has no partition {index}"
            )
        return record


def _named(topics: Any, name: str, partitions: str) -> Iterator[tuple[str, int]]:
    """Yield the partitions of topics in a request; `name` and `partitions` are the fields of a topic."""
    return ((getattr(each, name), index) for each in topics for index in getattr(each, partitions))
