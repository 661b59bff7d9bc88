"""Routes for calls about the configuration of the cluster and of individual brokers.

The module is a part of the route table, which `routes` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import Kind, Operation, each_in_body, needs, on
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.metadata import ConfigDescription
from fairlead_api.bodies.requests import AlterConfigRequest
from fairlead_api.routes.definitions import AnswerForm, Route

BROKER_PARAMETER: Final = {"broker": "id of the broker"}
BODY_TYPES: Final = (JSON, "application/merge-patch+json")
_CHANGE_PROBLEMS: Final = (
    "invalid_config",
    "body_too_large",
    "unsupported_media_type",
    "conflict",
    "shutting_down",
    "coordination_unavailable",
)


def _described(explanation: str) -> tuple[AnswerForm, ...]:
    return (AnswerForm(status=200, type=ConfigDescription, media_types=(JSON,), explanation=explanation),)


CONFIG_ROUTES: Final = (
    Route(
        name="describe_cluster_config",
        method="GET",
        path="/v1/cluster/config",
        summary="The configuration of the cluster, with the source of each value",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        answers=_described("every key that can be set on the cluster"),
    ),
    Route(
        name="alter_cluster_config",
        method="PATCH",
        path="/v1/cluster/config",
        summary="Change the configuration of the cluster",
        access=needs(on(Operation.ALTER, Kind.CLUSTER), each_in_body(Operation.ALTER, Kind.SECURITY)),
        request=AlterConfigRequest,
        body_types=BODY_TYPES,
        answers=_described("the configuration after the change; every broker applies it within seconds"),
        problems=_CHANGE_PROBLEMS,
    ),
    Route(
        name="describe_broker_config",
        method="GET",
        path="/v1/brokers/{broker}/config",
        summary="The configuration of one broker, with the source of each value",
        access=needs(on(Operation.DESCRIBE, Kind.CLUSTER)),
        path_parameters=BROKER_PARAMETER,
        answers=_described("every key that can be set on a broker"),
        problems=("broker_not_found",),
    ),
    Route(
        name="alter_broker_config",
        method="PATCH",
        path="/v1/brokers/{broker}/config",
        summary="Change the configuration of one broker",
        access=needs(on(Operation.ALTER, Kind.CLUSTER)),
        path_parameters=BROKER_PARAMETER,
        request=AlterConfigRequest,
        body_types=BODY_TYPES,
        answers=_described("the configuration after the change; the broker applies it within seconds"),
        problems=("broker_not_found", *_CHANGE_PROBLEMS),
    ),
)
"""Routes of this module, in the order of the route table."""
