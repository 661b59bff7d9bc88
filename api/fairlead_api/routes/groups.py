"""Routes of the calls about consumer groups.

The module is a part of the route table, which `routes` assembles. Every broker accepts every call about groups. The
group's coordinator answers calls about one group; other brokers forward these calls to the coordinator.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import Kind, Operation, each_in_answer, each_in_body, needs, on, self_with
from fairlead_api.bodies.group_answers import (
    CommitAnswer,
    GroupDescription,
    GroupListing,
    HeartbeatAnswer,
    LagAnswer,
    OffsetsAnswer,
    ResetAnswer,
)
from fairlead_api.bodies.group_requests import CommitRequest, HeartbeatRequest, ResetRequest
from fairlead_api.bodies.media_types import JSON, Header
from fairlead_api.routes.definitions import AnswerForm, HeaderParameter, Route, Traffic
from fairlead_api.routes.query_parameters import ParameterKind, QueryParameter
from fairlead_api.routes.records import ISOLATION
from fairlead_api.routes.topics import AFTER, LIMIT, TOPICS

_GROUP: Final = "/v1/groups/{group}"
_MEMBER: Final = f"{_GROUP}/members/{{member}}"
_GROUP_PARAMETER: Final = {"group": "name of the group"}
_MEMBER_PARAMETERS: Final = {**_GROUP_PARAMETER, "member": "id of the member, which the member chooses"}
_FORWARD_HEADER: Final = HeaderParameter(
    Header.FORWARD,
    "`never`: answer `not_coordinator` with the coordinator's address instead of forwarding",
)
_STATIC: Final = QueryParameter(
    name="static",
    kind=ParameterKind.FLAG,
    default=False,
    explanation="keep the partitions of a static member until its session ends",
)
_DRY_RUN: Final = QueryParameter(
    name="dry_run",
    kind=ParameterKind.FLAG,
    default=False,
    explanation="return the offsets that the reset would set, without changing them",
)
_COORDINATOR: Final = (
    "invalid_group_name",
    "not_coordinator",
    "coordination_unavailable",
    "overloaded",
    "shutting_down",
)
_BODY: Final = ("body_too_large", "unsupported_media_type")
_TOPIC: Final = ("invalid_topic_name", "topic_not_found", "topic_recreated", "partition_not_found")
_MEMBERSHIP: Final = ("member_not_found", "member_fenced", "stale_member_epoch")


def _json(type_: object, explanation: str, status: int = 200) -> AnswerForm:
    return AnswerForm(status=status, type=type_, media_types=(JSON,), explanation=explanation)


GROUP_ROUTES: Final = (
    Route(
        name="list_groups",
        method="GET",
        path="/v1/groups",
        summary="The consumer groups, page by page in a fixed order",
        access=self_with(each_in_answer(Operation.DESCRIBE, Kind.GROUP)),
        query=(LIMIT, AFTER),
        answers=(_json(GroupListing, "one page of groups"),),
        problems=("coordination_unavailable", "shutting_down"),
    ),
    Route(
        name="describe_group",
        method="GET",
        path=_GROUP,
        summary="A group with its members and their partitions",
        access=needs(on(Operation.DESCRIBE, Kind.GROUP), each_in_answer(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=_GROUP_PARAMETER,
        headers=(_FORWARD_HEADER,),
        answers=(_json(GroupDescription, "the group"),),
        problems=("group_not_found", *_COORDINATOR),
    ),
    Route(
        name="delete_group",
        method="DELETE",
        path=_GROUP,
        summary="Delete a group without members, and its committed offsets",
        access=needs(on(Operation.DELETE, Kind.GROUP)),
        path_parameters=_GROUP_PARAMETER,
        headers=(_FORWARD_HEADER,),
        answers=(AnswerForm(status=204, explanation="the group and its offsets are deleted"),),
        problems=("group_not_found", "group_not_empty", *_COORDINATOR),
    ),
    Route(
        name="group_lag",
        method="GET",
        path=f"{_GROUP}/lag",
        summary="The lag of a group, in records and seconds",
        access=needs(on(Operation.DESCRIBE, Kind.GROUP), each_in_answer(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=_GROUP_PARAMETER,
        query=(ISOLATION,),
        headers=(_FORWARD_HEADER,),
        answers=(_json(LagAnswer, "every partition with a committed offset or an owner, and the totals"),),
        problems=("group_not_found", *_COORDINATOR),
    ),
    Route(
        name="heartbeat",
        traffic=Traffic.ROUTINE,
        method="PUT",
        path=_MEMBER,
        summary="Join a group with member epoch 0, then send heartbeats and get the assignment",
        access=needs(on(Operation.READ, Kind.GROUP), each_in_body(Operation.READ, Kind.TOPIC)),
        path_parameters=_MEMBER_PARAMETERS,
        request=HeartbeatRequest,
        body_types=(JSON,),
        headers=(_FORWARD_HEADER,),
        answers=(_json(HeartbeatAnswer, "the member's epoch, and its assignment if it has changed"),),
        problems=(
            "invalid_topic_name",
            "invalid_pattern",
            "group_too_large",
            "instance_fenced",
            *_MEMBERSHIP,
            *_BODY,
            *_COORDINATOR,
        ),
    ),
    Route(
        name="leave_group",
        traffic=Traffic.ROUTINE,
        method="DELETE",
        path=_MEMBER,
        summary="Leave a group; the member's partitions are assigned to other members immediately",
        access=needs(on(Operation.READ, Kind.GROUP)),
        path_parameters=_MEMBER_PARAMETERS,
        query=(_STATIC,),
        headers=(_FORWARD_HEADER,),
        answers=(
            AnswerForm(status=204, explanation="the member has left; with `static` its partitions are kept"),
        ),
        problems=("member_not_found", *_COORDINATOR),
    ),
    Route(
        name="committed_offsets",
        method="GET",
        path=f"{_GROUP}/offsets",
        summary="The committed offsets of a group",
        access=needs(on(Operation.DESCRIBE, Kind.GROUP), each_in_answer(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=_GROUP_PARAMETER,
        query=(TOPICS,),
        headers=(_FORWARD_HEADER,),
        answers=(_json(OffsetsAnswer, "the committed offset of each partition that has one"),),
        problems=("invalid_topic_name", "topic_not_found", "group_not_found", *_COORDINATOR),
    ),
    Route(
        name="commit_offsets",
        traffic=Traffic.ROUTINE,
        method="PUT",
        path=f"{_GROUP}/offsets",
        summary="Commit offsets, as a member with its epoch or as a program outside the group with -1",
        access=needs(on(Operation.READ, Kind.GROUP), each_in_body(Operation.READ, Kind.TOPIC)),
        path_parameters=_GROUP_PARAMETER,
        request=CommitRequest,
        body_types=(JSON,),
        headers=(_FORWARD_HEADER,),
        answers=(
            _json(CommitAnswer, "all offsets were stored"),
            _json(
                CommitAnswer,
                "entries with a `problem` were not stored, all other offsets were stored",
                status=207,
            ),
        ),
        problems=(
            "group_not_empty",
            "offset_out_of_range",
            *_TOPIC,
            *_MEMBERSHIP,
            *_BODY,
            *_COORDINATOR,
        ),
    ),
    Route(
        name="delete_offsets",
        method="DELETE",
        path=f"{_GROUP}/offsets",
        summary="Delete committed offsets of a group without members",
        access=needs(on(Operation.DELETE, Kind.GROUP)),
        path_parameters=_GROUP_PARAMETER,
        query=(TOPICS,),
        headers=(_FORWARD_HEADER,),
        answers=(_json(OffsetsAnswer, "the deleted offsets"),),
        problems=(
            "invalid_topic_name",
            "topic_not_found",
            "group_not_found",
            "group_not_empty",
            *_COORDINATOR,
        ),
    ),
    Route(
        name="reset_offsets",
        method="POST",
        path=f"{_GROUP}/offsets:reset",
        summary="Set the committed offsets of a group without members to a different position",
        access=needs(on(Operation.READ, Kind.GROUP), each_in_body(Operation.READ, Kind.TOPIC)),
        path_parameters=_GROUP_PARAMETER,
        request=ResetRequest,
        body_types=(JSON,),
        query=(_DRY_RUN,),
        headers=(_FORWARD_HEADER,),
        answers=(
            _json(ResetAnswer, "the offsets before and after the reset"),
            _json(ResetAnswer, "entries with a `problem` are unchanged", status=207),
        ),
        problems=(
            "group_not_found",
            "group_not_empty",
            "offset_out_of_range",
            "no_leader",
            *_TOPIC,
            *_BODY,
            *_COORDINATOR,
        ),
    ),
)
"""Routes of this module, in the order of the route table."""
