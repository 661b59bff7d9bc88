"""Routes of the calls about the cluster, its topics and the broker itself.

The module is a part of the route table, which `routes` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import (
    PUBLIC,
    Kind,
    Operation,
    each_in_answer,
    each_in_body,
    needs,
    on,
    self_with,
)
from fairlead_api.bodies.media_types import HTML, JSON, PNG, PROBLEM, PROMETHEUS, SCRIPT, STYLES, TEXT
from fairlead_api.bodies.metadata import (
    BrokerDescription,
    ClusterDescription,
    Metadata,
    Page,
    TopicDescription,
    Versions,
)
from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.identifiers import TOPIC_ID_PATTERN
from fairlead_api.routes.definitions import AnswerForm, HeaderParameter, Listener, Route
from fairlead_api.routes.query_parameters import ParameterKind, QueryParameter

PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 1000

TOPIC_PARAMETER: Final = {"topic": "name of the topic"}
TOPIC_ID_HEADER: Final = HeaderParameter(
    "Fairlead-Topic-Id",
    "id that the topic must have; if the topic of this name has a different id, the answer is `topic_recreated`",
    TOPIC_ID_PATTERN,
)
LIMIT: Final = QueryParameter(
    name="limit",
    kind=ParameterKind.INTEGER,
    default=PAGE_LIMIT_DEFAULT,
    minimum=1,
    maximum=PAGE_LIMIT_MAX,
    explanation="maximum number of entries in a page",
)
AFTER: Final = QueryParameter(
    name="after",
    kind=ParameterKind.TEXT,
    maximum=1024,
    explanation="cursor of the page: `next` of the previous page",
)
DRY_RUN: Final = QueryParameter(
    name="dry_run",
    kind=ParameterKind.FLAG,
    default=False,
    explanation="check the request and answer without creating the topic",
)
TOPICS: Final = QueryParameter(
    name="topics",
    kind=ParameterKind.TOPIC_NAMES,
    explanation="only these topics, by default all",
)

CONFIG_NAMES: Final = QueryParameter(
    name="config",
    kind=ParameterKind.TEXT,
    maximum=4096,
    explanation="settings in the answer, separated by commas, by default all",
)


def _json(status: int, type_: object, explanation: str, headers: tuple[str, ...] = ()) -> AnswerForm:
    return AnswerForm(
        status=status, type=type_, media_types=(JSON,), explanation=explanation, headers=headers
    )


TOPIC_ROUTES: Final = (
    Route(
        name="versions",
        method="GET",
        path="/v1/versions",
        summary="The versions that this broker supports, and its cluster",
        access=PUBLIC,
        answers=(_json(200, Versions, "versions, codecs and the cluster's id"),),
    ),
    Route(
        name="describe_cluster",
        method="GET",
        path="/v1/cluster",
        summary="The cluster: id, controller and brokers",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        answers=(_json(200, ClusterDescription, "the state of the cluster, as known to this broker"),),
    ),
    Route(
        name="list_brokers",
        method="GET",
        path="/v1/brokers",
        summary="The brokers, including brokers that are not running",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        query=(LIMIT, AFTER),
        answers=(_json(200, Page[BrokerDescription], "one page of brokers, by id"),),
    ),
    Route(
        name="metadata",
        method="GET",
        path="/v1/metadata",
        summary="Topics with the leader and the replicas of each partition",
        access=self_with(each_in_answer(Operation.DESCRIBE, Kind.TOPIC)),
        query=(TOPICS,),
        headers=(HeaderParameter("If-None-Match", "`ETag` of an earlier answer"),),
        answers=(
            _json(200, Metadata, "brokers, and topics with their partitions", ("ETag",)),
            AnswerForm(
                status=304, explanation="the metadata have not changed since the answer with this `ETag`"
            ),
        ),
        problems=("topic_not_found", "invalid_topic_name"),
    ),
    Route(
        name="list_topics",
        method="GET",
        path="/v1/topics",
        summary="The topics, by name",
        access=self_with(each_in_answer(Operation.DESCRIBE, Kind.TOPIC)),
        query=(LIMIT, AFTER, CONFIG_NAMES),
        headers=(HeaderParameter("If-None-Match", "`ETag` of an earlier answer with the same parameters"),),
        answers=(
            _json(200, Page[TopicDescription], "one page of topics", ("ETag",)),
            AnswerForm(status=304, explanation="the page has not changed since the answer with this `ETag`"),
        ),
        problems=("invalid_config",),
    ),
    Route(
        name="create_topic",
        method="POST",
        path="/v1/topics",
        summary="Create a topic",
        access=self_with(each_in_body(Operation.CREATE, Kind.TOPIC)),
        request=CreateTopicRequest,
        body_types=(JSON,),
        query=(DRY_RUN,),
        answers=(
            _json(201, TopicDescription, "the topic was created and is ready"),
            _json(
                200,
                TopicDescription,
                "the topic exists with exactly this specification, or the call was a dry run",
            ),
        ),
        problems=(
            "topic_exists",
            "too_many_partitions",
            "invalid_topic_name",
            "invalid_config",
            "body_too_large",
            "unsupported_media_type",
            "shutting_down",
            "coordination_unavailable",
        ),
    ),
    Route(
        name="describe_topic",
        method="GET",
        path="/v1/topics/{topic}",
        summary="A topic with each configuration value and its source",
        access=needs(on(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=TOPIC_PARAMETER,
        answers=(_json(200, TopicDescription, "the topic"),),
        problems=("topic_not_found", "invalid_topic_name"),
    ),
    Route(
        name="alter_topic",
        method="PATCH",
        path="/v1/topics/{topic}",
        summary="Change configuration or the replicas of new partitions, or add partitions",
        access=needs(on(Operation.ALTER, Kind.TOPIC)),
        path_parameters=TOPIC_PARAMETER,
        request=AlterTopicRequest,
        body_types=(JSON, "application/merge-patch+json"),
        headers=(TOPIC_ID_HEADER,),
        answers=(_json(200, TopicDescription, "the topic after the change"),),
        problems=(
            "topic_not_found",
            "topic_recreated",
            "too_many_partitions",
            "invalid_topic_name",
            "invalid_config",
            "body_too_large",
            "unsupported_media_type",
            "conflict",
            "shutting_down",
            "coordination_unavailable",
        ),
    ),
    Route(
        name="delete_topic",
        method="DELETE",
        path="/v1/topics/{topic}",
        summary="Delete a topic with all its records",
        access=needs(on(Operation.DELETE, Kind.TOPIC)),
        path_parameters=TOPIC_PARAMETER,
        headers=(TOPIC_ID_HEADER,),
        answers=(AnswerForm(status=204, explanation="the topic is deleted and its name can be used again"),),
        problems=(
            "topic_not_found",
            "topic_recreated",
            "invalid_topic_name",
            "shutting_down",
            "coordination_unavailable",
        ),
    ),
)

OPS_ROUTES: Final = (
    Route(
        name="problem_page",
        method="GET",
        path="/problems/{code}",
        summary="The meaning of a problem and the remedy",
        access=PUBLIC,
        path_parameters={"code": "code of the problem"},
        answers=(AnswerForm(status=200, media_types=(HTML, TEXT), explanation="the page of the problem"),),
        problems=("route_not_found", "not_acceptable"),
    ),
    Route(
        name="openapi",
        method="GET",
        path="/openapi.json",
        summary="This contract as an OpenAPI 3.1 document",
        access=PUBLIC,
        answers=(AnswerForm(status=200, media_types=(JSON,), explanation="the document"),),
    ),
    Route(
        name="docs",
        method="GET",
        path="/docs",
        summary="This contract as an HTML page",
        access=PUBLIC,
        answers=(
            AnswerForm(
                status=200,
                media_types=(HTML,),
                explanation="the page, which loads nothing from other servers",
            ),
        ),
    ),
    Route(
        name="docs_asset",
        method="GET",
        path="/docs/{asset}",
        summary="A part of the page `/docs`",
        access=PUBLIC,
        path_parameters={"asset": "name of the style sheet"},
        answers=(AnswerForm(status=200, media_types=(SCRIPT, STYLES, PNG), explanation="the file"),),
        problems=("route_not_found",),
    ),
    Route(
        name="healthz",
        method="GET",
        path="/healthz",
        summary="Whether the process is alive",
        access=PUBLIC,
        listener=Listener.OPS,
        answers=(AnswerForm(status=200, media_types=(TEXT,), explanation="the process is alive"),),
    ),
    Route(
        name="readyz",
        method="GET",
        path="/readyz",
        summary="Whether the broker has caught up and serves requests",
        access=PUBLIC,
        listener=Listener.OPS,
        answers=(
            AnswerForm(status=200, media_types=(TEXT,), explanation="the broker serves"),
            AnswerForm(
                status=503,
                media_types=(TEXT, PROBLEM),
                explanation="the broker is recovering or stopping, or has failed",
            ),
        ),
    ),
    Route(
        name="metrics",
        method="GET",
        path="/metrics",
        summary="The broker's metrics for Prometheus",
        access=PUBLIC,
        listener=Listener.OPS,
        answers=(AnswerForm(status=200, media_types=(PROMETHEUS,), explanation="Prometheus' text format"),),
    ),
)
