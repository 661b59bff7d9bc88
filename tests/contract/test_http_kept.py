"""Requests, problems and the OpenAPI document, as clients in any language see them."""

from __future__ import annotations

from typing import Any

import msgspec

import golden
from fairlead_api.problems import CATALOGUE, ProblemError
from fairlead_api.problems.definitions import ProblemKind
from fairlead_api.routes import ROUTES
from fairlead_api.routes.definitions import Route
from fairlead_api.routes.openapi import document
from fairlead_api.routes.query_parameters import OffsetExpression, QueryParameter
from fairlead_broker.peers.cleaning import CleaningRequest
from fairlead_broker.peers.digests import DigestRequest
from fairlead_broker.peers.messages import (
    LogEndsAnswer,
    LogEndsRequest,
    ProgressRequest,
    ReplicaFetchRequest,
    ReplicaFetchResult,
)
from fairlead_broker.peers.positions import PositionsAnswer, PositionsRequest
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES

_PEER_NAMES = (
    "replica_fetch request",
    "replica_fetch result",
    "replica_progress request",
    "log_ends request",
    "log_ends answer",
    "replica_cleaning request",
    "replica_digest request",
    "positions request",
    "positions answer",
)
_PEER_MESSAGES = (
    ReplicaFetchRequest,
    ReplicaFetchResult,
    ProgressRequest,
    LogEndsRequest,
    LogEndsAnswer,
    CleaningRequest,
    DigestRequest,
    PositionsRequest,
    PositionsAnswer,
)


def openapi() -> Any:
    """Describe the OpenAPI document without its sentences."""
    return golden.without_texts(document("0"))


def problems() -> Any:
    """Describe every code with its status, its kind and the data that its document may contain."""
    codes = {
        code: {
            "status": entry.status,
            "kind": entry.kind.value,
            "retryable": entry.retryable,
            "side_effect": entry.side_effect.value,
            "type": entry.type_uri,
            "data": sorted(member.name for member in entry.data_members),
        }
        for code, entry in CATALOGUE.items()
    }
    full = ProblemError("overloaded", "detail", retry_after_seconds=1.0).to_document()
    return {"kinds": sorted(ProblemKind), "members": sorted(full), "codes": codes}


def routes() -> Any:
    """Describe every request that the three listeners serve."""
    return {entry.name: _route(entry) for entry in (*ROUTES, *PEER_ROUTES)}


def _route(entry: Route) -> Any:
    return {
        "call": f"{entry.method} {entry.path}",
        "listener": entry.listener.value,
        "authorization": str(entry.access),
        "body": list(entry.body_types),
        "query": {each.name: _parameter(each) for each in entry.query},
        "headers": {each.name: each.pattern for each in entry.headers},
        "answers": {
            str(form.status): {"types": list(form.media_types), "headers": sorted(form.headers)}
            for form in entry.answers
        },
        "problems": sorted(set(entry.problems)),
    }


def _parameter(each: QueryParameter) -> Any:
    default: Any = each.default
    if isinstance(default, OffsetExpression):
        default = [default.origin.value, default.number]
    return {
        "kind": each.kind.value,
        "default": default,
        "range": [each.minimum, each.maximum],
        "choices": list(each.choices),
        "excludes": sorted(each.excludes),
    }


def peer_messages() -> Any:
    """Describe the JSON between brokers, which two releases exchange while a cluster is upgraded."""
    schemas, components = msgspec.json.schema_components(
        _PEER_MESSAGES, schema_hook=_any_value, ref_template="#/$defs/{name}"
    )
    return {
        name: golden.without_texts(golden.inlined({**schema, "$defs": components}))
        for name, schema in zip(_PEER_NAMES, schemas, strict=True)
    }


def _any_value(type_: type) -> dict[str, Any]:
    """Describe a type that msgspec's schemas do not cover, such as the bytes next to the JSON, by its name."""
    return {"other": type_.__name__}


def test_the_openapi_document_is_unchanged() -> None:
    """Every path, parameter, body, answer and schema of the OpenAPI document is unchanged, except for sentences."""
    golden.assert_unchanged("openapi", openapi())


def test_the_problems_are_unchanged() -> None:
    """Problems keep their codes, statuses, kinds, side effects and data members."""
    golden.assert_unchanged("problems", problems())


def test_the_routes_are_unchanged() -> None:
    """Requests keep their method, path, listener, parameters, headers, media types and problems."""
    golden.assert_unchanged("routes", routes())


def test_the_messages_between_brokers_are_unchanged() -> None:
    """Messages between brokers keep their fields, types and defaults."""
    golden.assert_unchanged("peer_messages", peer_messages())
