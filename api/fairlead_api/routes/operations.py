"""Routes of the calls that operators use to cordon, drain and restart brokers and to move partitions.

The module is a part of the route table, which `routes` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import Kind, Operation, each_in_answer, each_in_body, needs, on, self_with
from fairlead_api.bodies.cleaning import PartitionCleaning
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.metadata import BrokerDescription, Page, PartitionDescription
from fairlead_api.bodies.operations import (
    BrokerReport,
    ElectRequest,
    PartitionDigest,
    PartitionState,
    ReassignmentDescription,
    ReassignRequest,
    RestartPermitAnswer,
    TopicSizes,
)
from fairlead_api.routes.configs import BROKER_PARAMETER
from fairlead_api.routes.definitions import AnswerForm, Route
from fairlead_api.routes.query_parameters import ParameterKind, QueryParameter
from fairlead_api.routes.records import FORWARD_HEADER
from fairlead_api.routes.topics import AFTER, LIMIT, TOPIC_ID_HEADER, TOPIC_PARAMETER

_PARTITION: Final = "/v1/topics/{topic}/partitions/{partition}"
_PARTITION_PARAMETERS: Final = {**TOPIC_PARAMETER, "partition": "index of the partition, from 0"}
_ONE_TOPIC: Final = QueryParameter(
    name="topic", kind=ParameterKind.TEXT, maximum=249, explanation="only this topic"
)
_CHANGE: Final = ("conflict", "shutting_down", "coordination_unavailable")
_TOPIC: Final = ("invalid_topic_name", "topic_not_found", "topic_recreated", "partition_not_found")
_BODY: Final = ("malformed_request", "body_too_large", "unsupported_media_type")


def _answered(type_: object, explanation: str) -> tuple[AnswerForm, ...]:
    return (AnswerForm(status=200, type=type_, media_types=(JSON,), explanation=explanation),)


def _broker_call(verb: str, summary: str, explanation: str) -> Route:
    return Route(
        name=f"{verb}_broker",
        method="POST",
        path=f"/v1/brokers/{{broker}}:{verb}",
        summary=summary,
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=BROKER_PARAMETER,
        answers=_answered(BrokerDescription, explanation),
        problems=("broker_not_found", *_CHANGE),
    )


OPERATION_ROUTES: Final = (
    _broker_call(
        "cordon",
        "Assign no new replicas to a broker",
        "the broker gets no new replicas from now on, even after a restart",
    ),
    _broker_call("uncordon", "Allow new replicas on a broker again", "the broker may get new replicas"),
    _broker_call(
        "drain",
        "Move all leaderships and then all replicas off a broker",
        "the moves are started; `GET /v1/reassignments` shows them",
    ),
    _broker_call(
        "undrain",
        "End the drain of a broker",
        "moves in progress are completed, and no further moves are started",
    ),
    Route(
        name="request_restart",
        method="POST",
        path="/v1/brokers/{broker}:request-restart",
        summary="Request the cluster's only permit to restart a broker",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=BROKER_PARAMETER,
        answers=_answered(
            RestartPermitAnswer,
            "the broker may be restarted; no other broker gets the permit until this broker has restarted",
        ),
        problems=("broker_not_found", "restart_refused", *_CHANGE),
    ),
    Route(
        name="unregister_broker",
        method="DELETE",
        path="/v1/brokers/{broker}",
        summary="Remove a broker that is permanently gone and has no replicas",
        access=needs(on(Operation.DELETE, Kind.CLUSTER)),
        path_parameters=BROKER_PARAMETER,
        answers=(AnswerForm(status=204, type=None, media_types=(), explanation="the broker is removed"),),
        problems=("broker_not_found", "not_possible_now", *_CHANGE),
    ),
    Route(
        name="describe_partition",
        method="GET",
        path=_PARTITION,
        summary="The leader and the replicas of a partition, with the voters of a write quorum",
        access=needs(on(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=_PARTITION_PARAMETERS,
        headers=(TOPIC_ID_HEADER,),
        answers=_answered(PartitionDescription, "the partition, even if its leader does not answer"),
        problems=_TOPIC,
    ),
    Route(
        name="reassign_partition",
        method="POST",
        path=f"{_PARTITION}:reassign",
        summary="Move a partition to other brokers",
        access=needs(on(Operation.ALTER, Kind.CLUSTER), on(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=_PARTITION_PARAMETERS,
        request=ReassignRequest,
        body_types=(JSON,),
        headers=(TOPIC_ID_HEADER,),
        answers=_answered(PartitionState, "the move has begun"),
        problems=(
            *_TOPIC,
            *_BODY,
            "invalid_config",
            "broker_not_found",
            "not_enough_replicas",
            "reassignment_in_progress",
            "too_many_partitions",
            *_CHANGE,
        ),
    ),
    Route(
        name="cancel_reassignment",
        method="DELETE",
        path=f"{_PARTITION}/reassignment",
        summary="Cancel a move; the partition keeps its previous replicas",
        access=needs(on(Operation.ALTER, Kind.CLUSTER), on(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=_PARTITION_PARAMETERS,
        headers=(TOPIC_ID_HEADER,),
        answers=_answered(PartitionState, "no move is in progress"),
        problems=(*_TOPIC, "not_enough_replicas", "not_possible_now", *_CHANGE),
    ),
    Route(
        name="elect_leader",
        method="POST",
        path=f"{_PARTITION}:elect",
        summary="Elect a leader now",
        access=needs(
            on(Operation.ALTER, Kind.CLUSTER),
            on(Operation.DESCRIBE, Kind.TOPIC),
            each_in_body(Operation.DELETE, Kind.TOPIC),
        ),
        path_parameters=_PARTITION_PARAMETERS,
        request=ElectRequest,
        body_types=(JSON,),
        headers=(TOPIC_ID_HEADER,),
        answers=_answered(PartitionState, "the requested leader is elected"),
        problems=(*_TOPIC, *_BODY, "no_leader", "not_possible_now", *_CHANGE),
    ),
    Route(
        name="digest_partition",
        method="GET",
        path=f"{_PARTITION}:digest",
        summary="Compare the replicas of a partition: a checksum of an offset range from each",
        access=needs(on(Operation.READ, Kind.TOPIC)),
        path_parameters=_PARTITION_PARAMETERS,
        query=(
            QueryParameter(
                name="from",
                kind=ParameterKind.INTEGER,
                explanation="the first offset, by default the log start",
            ),
            QueryParameter(
                name="to",
                kind=ParameterKind.INTEGER,
                explanation="the offset after the compared range, by default the high watermark",
            ),
            QueryParameter(
                name="mode",
                kind=ParameterKind.CHOICE,
                explanation="`stored`: the bytes of the batches above the highest offset that any replica has cleaned, "
                "which is 0 in a topic that was never compacted. `latest`: the newest record of each key of a "
                "compacted topic, without deleted keys",
                default="stored",
                choices=("stored", "latest"),
            ),
        ),
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER),
        answers=_answered(PartitionDigest, "the result of each replica, even if replicas differ"),
        problems=(
            *_TOPIC,
            "malformed_request",
            "not_leader",
            "no_leader",
            "offset_expired",
            "offset_out_of_range",
            "offset_not_available",
            "not_possible_now",
            "shutting_down",
        ),
    ),
    Route(
        name="partition_cleaning",
        method="GET",
        path=f"{_PARTITION}/cleaning",
        summary="The cleaning of each replica of a partition: offsets, dirty ratio and last round",
        access=needs(on(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=_PARTITION_PARAMETERS,
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER),
        answers=_answered(PartitionCleaning, "the state of each replica, even if some brokers do not answer"),
        problems=(*_TOPIC, "not_leader", "no_leader", "shutting_down"),
    ),
    Route(
        name="clean_partition",
        method="POST",
        path=f"{_PARTITION}:clean",
        summary="Clean every replica of a compacted partition now, whatever its dirty ratio",
        access=needs(on(Operation.ALTER, Kind.TOPIC)),
        path_parameters=_PARTITION_PARAMETERS,
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER),
        answers=_answered(PartitionCleaning, "the state of each replica, whose round begins soon"),
        problems=(*_TOPIC, "not_leader", "no_leader", "not_possible_now", "shutting_down"),
    ),
    Route(
        name="list_reassignments",
        method="GET",
        path="/v1/reassignments",
        summary="The moves of partitions in progress",
        access=self_with(each_in_answer(Operation.DESCRIBE, Kind.TOPIC)),
        query=(LIMIT, AFTER),
        answers=_answered(Page[ReassignmentDescription], "one page of moves, by topic and partition"),
    ),
    Route(
        name="list_replica_sizes",
        method="GET",
        path="/v1/replica-sizes",
        summary="The size of each replica's log, on every broker",
        access=self_with(each_in_answer(Operation.DESCRIBE, Kind.TOPIC)),
        query=(_ONE_TOPIC, LIMIT, AFTER),
        answers=_answered(Page[TopicSizes], "one page of topics, by name"),
    ),
    Route(
        name="list_broker_reports",
        method="GET",
        path="/v1/broker-reports",
        summary="The disk and the Kafka listener of each running broker",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        query=(LIMIT, AFTER),
        answers=_answered(
            Page[BrokerReport], "one page of brokers, by id, even if some brokers do not answer"
        ),
    ),
)
"""Routes of this module, in the order of the route table."""
