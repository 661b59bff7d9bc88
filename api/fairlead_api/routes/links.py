"""Routes of the calls about links, and about topics that are handed over to another cluster.

The module is a part of the route table, which `routes` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import Kind, Operation, each_in_body, needs, on
from fairlead_api.bodies.links import (
    AdoptRequest,
    AlterLinkRequest,
    CreateLinkRequest,
    HandOverAnswer,
    HandOverRequest,
    LinkDescription,
    LinkTail,
    LinkTopic,
    PromoteRequest,
    TakeBackRequest,
)
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.metadata import Page, TopicDescription
from fairlead_api.routes.definitions import AnswerForm, Route
from fairlead_api.routes.query_parameters import ParameterKind, QueryParameter
from fairlead_api.routes.topics import AFTER, LIMIT, TOPIC_PARAMETER

_LINK: Final = {"link": "name of the link"}
_BODY: Final = ("body_too_large", "unsupported_media_type")
_CHANGE: Final = ("conflict", "not_possible_now", "shutting_down", "coordination_unavailable")
_SOURCE: Final = ("link_source_unreachable", "link_source_changed")
_CHECK: Final = QueryParameter(
    name="dry_run",
    kind=ParameterKind.FLAG,
    default=False,
    explanation="check the request and the source without creating the link",
)


def _json(type_: object, explanation: str, status: int = 200) -> AnswerForm:
    return AnswerForm(status=status, type=type_, media_types=(JSON,), explanation=explanation)


LINK_ROUTES: Final = (
    Route(
        name="create_link",
        method="POST",
        path="/v1/links",
        summary="Create a link, which mirrors topics of another cluster",
        access=needs(on(Operation.ALTER, Kind.CLUSTER), each_in_body(Operation.CREATE, Kind.SECURITY)),
        request=CreateLinkRequest,
        body_types=(JSON,),
        query=(_CHECK,),
        answers=(
            _json(LinkDescription, "the link was created", 201),
            _json(
                LinkDescription,
                "the link exists with exactly this specification, or the call was a dry run",
            ),
        ),
        problems=(
            "invalid_link",
            "link_exists",
            "invalid_topic_name",
            "invalid_config",
            *_SOURCE,
            *_BODY,
            *_CHANGE,
        ),
    ),
    Route(
        name="list_links",
        method="GET",
        path="/v1/links",
        summary="The links, by name",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        query=(LIMIT, AFTER),
        answers=(_json(Page[LinkDescription], "one page of links"),),
    ),
    Route(
        name="describe_link",
        method="GET",
        path="/v1/links/{link}",
        summary="A link",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        path_parameters=_LINK,
        answers=(_json(LinkDescription, "the link"),),
        problems=("link_not_found",),
    ),
    Route(
        name="alter_link",
        method="PATCH",
        path="/v1/links/{link}",
        summary="Change a link",
        access=needs(on(Operation.ALTER, Kind.CLUSTER), each_in_body(Operation.CREATE, Kind.SECURITY)),
        path_parameters=_LINK,
        request=AlterLinkRequest,
        body_types=(JSON, "application/merge-patch+json"),
        answers=(_json(LinkDescription, "the link after the change"),),
        problems=("link_not_found", "invalid_link", "invalid_config", *_SOURCE, *_BODY, *_CHANGE),
    ),
    Route(
        name="delete_link",
        method="DELETE",
        path="/v1/links/{link}",
        summary="Delete a link that has no mirrors",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=_LINK,
        answers=(AnswerForm(status=204, explanation="the link is deleted"),),
        problems=("link_not_found", "link_in_use", *_CHANGE),
    ),
    Route(
        name="pause_link",
        method="POST",
        path="/v1/links/{link}:pause",
        summary="Stop the copying of a link's mirrors",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=_LINK,
        answers=(_json(LinkDescription, "the paused link"),),
        problems=("link_not_found", *_CHANGE),
    ),
    Route(
        name="resume_link",
        method="POST",
        path="/v1/links/{link}:resume",
        summary="Continue the copying of a link's mirrors",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=_LINK,
        answers=(_json(LinkDescription, "the running link"),),
        problems=("link_not_found", *_CHANGE),
    ),
    Route(
        name="acknowledge_link",
        method="POST",
        path="/v1/links/{link}:acknowledge",
        summary="Let stopped mirrors of a link continue, with the loss that stopped them",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=_LINK,
        answers=(_json(LinkDescription, "the stopped mirrors continue"),),
        problems=("link_not_found", *_CHANGE),
    ),
    Route(
        name="link_topics",
        method="GET",
        path="/v1/links/{link}/topics",
        summary="The topics of a link, with their lag behind the source",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        path_parameters=_LINK,
        query=(LIMIT, AFTER),
        answers=(_json(Page[LinkTopic], "one page of topics, by name"),),
        problems=("link_not_found",),
    ),
    Route(
        name="link_tails",
        method="GET",
        path="/v1/links/{link}/tails",
        summary="The files of records that were cut from the topics of a link",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        path_parameters=_LINK,
        query=(LIMIT, AFTER),
        answers=(_json(Page[LinkTail], "one page of files, by topic, partition, offset and broker"),),
        problems=("link_not_found",),
    ),
    Route(
        name="promote_link",
        method="POST",
        path="/v1/links/{link}:promote",
        summary="Make mirrors of a link accept records",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=_LINK,
        request=PromoteRequest,
        body_types=(JSON,),
        answers=(_json(list[LinkTopic], "the promotion of the topics has begun", 202),),
        problems=("link_not_found", "topic_not_found", *_BODY, *_CHANGE),
    ),
    Route(
        name="take_back_link",
        method="POST",
        path="/v1/links/{link}:take-back",
        summary="Cancel the hand-over of mirrors, so that the source accepts records again",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=_LINK,
        request=TakeBackRequest,
        body_types=(JSON,),
        answers=(_json(list[LinkTopic], "the topics are mirrored again, and the source accepts records"),),
        problems=("link_not_found", "topic_not_found", "not_handed_over", *_SOURCE, *_BODY, *_CHANGE),
    ),
    Route(
        name="adopt_link",
        method="POST",
        path="/v1/links/{link}:adopt",
        summary="Make topics of this cluster mirrors of their promoted copies in the source",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=_LINK,
        request=AdoptRequest,
        body_types=(JSON,),
        answers=(
            _json(list[LinkTopic], "the topics are mirrors; records that the source lacks are kept in files"),
        ),
        problems=(
            "link_not_found",
            "topic_not_found",
            "topic_is_mirror",
            "histories_diverged",
            *_SOURCE,
            *_BODY,
            *_CHANGE,
        ),
    ),
    Route(
        name="hand_over_topic",
        method="POST",
        path="/v1/topics/{topic}:hand-over",
        summary="Stop accepting records of a topic in favour of another cluster; calls may be repeated",
        access=needs(on(Operation.ALTER, Kind.TOPIC)),
        path_parameters=TOPIC_PARAMETER,
        request=HandOverRequest,
        body_types=(JSON,),
        answers=(_json(HandOverAnswer, "the topic accepts no records; the end of each partition"),),
        problems=(
            "topic_not_found",
            "topic_is_mirror",
            "topic_moved",
            "invalid_topic_name",
            "invalid_link",
            *_BODY,
            *_CHANGE,
        ),
    ),
    Route(
        name="take_back_topic",
        method="POST",
        path="/v1/topics/{topic}:take-back",
        summary="Accept records again of a topic that was handed over",
        access=needs(on(Operation.ALTER, Kind.TOPIC)),
        path_parameters=TOPIC_PARAMETER,
        answers=(_json(TopicDescription, "the topic accepts records"),),
        problems=("topic_not_found", "not_handed_over", "invalid_topic_name", *_CHANGE),
    ),
)
"""Routes of this module, in the order of the route table."""
