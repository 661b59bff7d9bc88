"""OpenAPI 3.1 document of the contract, built from the route table.

Brokers serve the document at `/openapi.json`, and tests check the document against the standard. This module must take
all information from the route table and the request types, so that no call can be missing.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, assert_never

import msgspec

from fairlead_api.bodies.media_types import CLOUD_EVENT, CLOUD_EVENTS, EVENT_STREAM, NDJSON, PROBLEM
from fairlead_api.bodies.requests import INT32_MAX
from fairlead_api.identifiers import GROUP_NAME_PATTERN, NAME_PATTERN, PARTITION_MAX
from fairlead_api.problems import CATALOGUE, ProblemKind, SideEffect
from fairlead_api.routes import ROUTES
from fairlead_api.routes.definitions import EVERYWHERE, AnswerForm, HeaderParameter, Listener, Route
from fairlead_api.routes.query_parameters import OffsetExpression, OffsetOrigin, ParameterKind, QueryParameter

Schema = dict[str, object]

REFERENCE_TEMPLATE: Final = "#/components/schemas/{name}"
_NAME: Final[Schema] = {"type": "string", "pattern": NAME_PATTERN}
_GROUP_NAME: Final[Schema] = {"type": "string", "pattern": GROUP_NAME_PATTERN}
_PATH_SCHEMAS: Final[dict[str, Schema]] = {
    "topic": _NAME,
    "group": _GROUP_NAME,
    "member": _GROUP_NAME,
    "partition": {"type": "integer", "minimum": 0, "maximum": PARTITION_MAX},
    "broker": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
    "code": {"type": "string", "enum": sorted(CATALOGUE)},
    "asset": {"type": "string", "minLength": 1},
    "token": {"type": "string", "minLength": 1},
    "acl": {"type": "string", "minLength": 1},
    "subject": {"type": "string", "minLength": 1},
    "link": _NAME,
    "transaction": _NAME,
}
_EVENT: Final[Schema] = {
    "type": "object",
    "description": "A CloudEvent 1.0 in JSON; further attributes are text, numbers or booleans.",
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1},
        "type": {"type": "string", "minLength": 1},
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": {"type": "string"},
        "partitionkey": {"type": "string", "description": "the record's key"},
        "data": {"description": "any JSON value"},
        "data_base64": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["specversion", "id", "source", "type"],
    "propertyNames": {"anyOf": [{"pattern": "^[a-z0-9]{1,64}$"}, {"const": "data_base64"}]},
    "additionalProperties": {"type": ["string", "boolean", "integer", "null"]},
}
_BODY_SCHEMAS: Final[dict[str, Schema]] = {
    PROBLEM: {"$ref": REFERENCE_TEMPLATE.format(name="Problem")},
    CLOUD_EVENT: {"$ref": REFERENCE_TEMPLATE.format(name="CloudEvent")},
    CLOUD_EVENTS: {"type": "array", "items": {"$ref": REFERENCE_TEMPLATE.format(name="CloudEvent")}},
}
"""Schemas of bodies that have no msgspec type."""


def document(release: str, listeners: Container[Listener] = frozenset(Listener)) -> Schema:
    """Return the document for the calls of the given listeners; `release` is the version of the software."""
    schemas = _Schemas()
    paths: dict[str, dict[str, object]] = {}
    for route in ROUTES:
        if route.listener not in listeners:
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    described: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlead",
            "version": release,
            "summary": "A distributed commit log over HTTP",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**schemas.components, "CloudEvent": _EVENT, "Problem": _problem_schema()},
            "responses": {code: _problem_response(code) for code in sorted(CATALOGUE)},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        # A call without a token has the principal `anonymous`, and `open` mode allows such calls.
        "security": [{}, {"bearer": []}],
    }
    # Encoding and decoding the document converts values such as tuples in defaults to JSON values.
    return msgspec.json.decode(msgspec.json.encode(described), type=Schema)


class _Schemas:
    """Schemas of all bodies, created together so that each shared type has one name."""

    def __init__(self) -> None:
        types = [
            type_
            for route in ROUTES
            for type_ in (
                *(route.request, *route.other_requests, *route.line_requests),
                *(
                    type_
                    for form in route.answers
                    for type_ in (form.type, *form.other_types, *form.line_types)
                ),
            )
            if type_ is not None
        ]
        unique = list(dict.fromkeys(types))
        schemas, self.components = msgspec.json.schema_components(
            unique, schema_hook=_any_value, ref_template=REFERENCE_TEMPLATE
        )
        self._by_type = dict(zip(unique, schemas, strict=True))

    def of(self, types: tuple[object, ...]) -> Schema:
        """Return the schema of a body that can have any of these types."""
        schemas = [self._by_type[type_] for type_ in types]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _any_value(type_: type) -> Schema:
    """Return the schema of any JSON value for `object`, the only type that msgspec does not describe."""
    assert type_ is object, type_
    return {"description": "any JSON value"}


def _operation(route: Route, schemas: _Schemas) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.subject],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "description": text, "schema": _PATH_SCHEMAS[name]}
              for name, text in route.path_parameters.items()),
            *(_query_parameter(parameter) for parameter in route.query),
            *(_header_parameter(header) for header in route.headers),
        ],
        "responses": {
            **{str(form.status): _response(form, schemas) for form in route.answers},
            **_refusals(route),
        },
        "x-fairlead-listener": route.listener.value,
        "x-fairlead-access": str(route.access),
    }  # fmt: skip
    if route.body_types:
        operation["requestBody"] = {
            "required": not route.is_body_optional,
            "content": _content(
                route.body_types, (route.request, *route.other_requests), route.line_requests, schemas
            ),
        }
    return operation


def _query_parameter(parameter: QueryParameter) -> dict[str, object]:
    described: dict[str, object] = {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": f"{parameter.explanation}; allowed: {parameter.allowed}",
        "schema": _parameter_schema(parameter),
    }
    if parameter.kind is ParameterKind.TOPIC_NAMES:
        described |= {"style": "form", "explode": False}
    return described


def _parameter_schema(parameter: QueryParameter) -> Schema:
    schema: Schema
    match parameter.kind:
        case ParameterKind.INTEGER:
            schema = {"type": "integer", "minimum": parameter.minimum, "maximum": parameter.maximum}
        case ParameterKind.CHOICE:
            schema = {"type": "string", "enum": list(parameter.choices)}
        case ParameterKind.FLAG:
            schema = {"type": "boolean"}
        case ParameterKind.TOPIC_NAMES:
            schema = {"type": "array", "minItems": 1, "items": _NAME}
        case ParameterKind.OFFSET:
            schema = {"type": "string", "pattern": "^(-?[0-9]{1,19}|earliest|latest)$"}
        case ParameterKind.TIMESTAMP:
            schema = {"anyOf": [{"type": "integer"}, {"type": "string", "format": "date-time"}]}
        case ParameterKind.TEXT:
            schema = {"type": "string", "minLength": 1, "maxLength": parameter.maximum}
        case _:
            assert_never(parameter.kind)
    if parameter.default is not None:
        schema["default"] = _default(parameter)
    return schema


def _default(parameter: QueryParameter) -> object:
    if isinstance(parameter.default, OffsetExpression):
        assert parameter.default.origin in (OffsetOrigin.EARLIEST, OffsetOrigin.LATEST)
        return parameter.default.origin.value
    return parameter.default


def _header_parameter(header: HeaderParameter) -> dict[str, object]:
    return {
        "name": header.name,
        "in": "header",
        "required": False,
        "description": header.explanation,
        "schema": {"type": "string", **({"pattern": header.pattern} if header.pattern else {})},
    }


def _response(form: AnswerForm, schemas: _Schemas) -> dict[str, object]:
    response: dict[str, object] = {"description": form.explanation}
    if form.media_types:
        response["content"] = _content(
            form.media_types, (form.type, *form.other_types), form.line_types, schemas
        )
    if form.headers:
        response["headers"] = {name: {"schema": {"type": "string"}} for name in form.headers}
    return response


def _content(
    media_types: tuple[str, ...], types: tuple[object, ...], line_types: tuple[object, ...], schemas: _Schemas
) -> dict[str, object]:
    """Return the schemas of a body by media type."""
    return {
        media_type: {"schema": _body_schema(media_type, types, line_types, schemas)}
        for media_type in media_types
    }


def _body_schema(
    media_type: str, types: tuple[object, ...], line_types: tuple[object, ...], schemas: _Schemas
) -> Schema:
    """Return the schema of a body: a JSON schema, the schema of the lines of a stream, text, or bytes."""
    if media_type in _BODY_SCHEMAS:
        return _BODY_SCHEMAS[media_type]
    if media_type in (NDJSON, EVENT_STREAM):
        what = (
            "one JSON object per line"
            if media_type == NDJSON
            else "events, each with one JSON object as `data`"
        )
        # OpenAPI 3.1 cannot describe streams; OpenAPI 3.2 has `itemSchema` for this purpose.
        return {"type": "string", "description": what, "x-itemSchema": schemas.of(line_types)}
    if media_type.partition(";")[0].endswith("json"):
        return {"type": "object"} if types == (None,) else schemas.of(types)
    return {"type": "string"} if media_type.startswith("text/") else {"type": "string", "format": "binary"}


def _refusals(route: Route) -> dict[str, object]:
    """Return the problems of a route by status, except statuses that the route also uses for success."""
    codes = (*route.problems, *EVERYWHERE) if route.listener is Listener.DATA else route.problems
    taken = {form.status for form in route.answers}
    by_status: dict[int, list[str]] = {}
    for code in sorted(set(codes)):
        by_status.setdefault(CATALOGUE[code].status, []).append(code)
    return {
        str(status): {
            "description": ", ".join(grouped),
            "content": {PROBLEM: {"schema": {"$ref": REFERENCE_TEMPLATE.format(name="Problem")}}},
        }
        for status, grouped in sorted(by_status.items())
        if status not in taken
    }


def _problem_response(code: str) -> dict[str, object]:
    definition = CATALOGUE[code]
    return {
        "description": f"{definition.title}. {definition.explanation}",
        "content": {PROBLEM: {"schema": {"$ref": REFERENCE_TEMPLATE.format(name="Problem")}}},
    }


def _problem_schema() -> Schema:
    members: dict[str, Schema] = {
        "type": {"type": "string", "format": "uri-reference", "description": "page of the problem"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {
            "type": "string",
            "description": "explanation of this occurrence, with its subject and numbers",
        },
        "code": {
            "type": "string",
            "description": "stable name of the problem",
            "examples": sorted(CATALOGUE),
        },
        "kind": {"type": "string", "enum": [kind.value for kind in ProblemKind]},
        "retryable": {"type": "boolean"},
        "side_effect": {"type": "string", "enum": [effect.value for effect in SideEffect]},
        "retry_after_seconds": {"type": "number"},
    }
    return {
        "type": "object",
        "description": "An RFC 9457 problem; the data members of the code follow these members.",
        "properties": members,
        "required": [name for name in members if name != "retry_after_seconds"],
        "additionalProperties": True,
    }
