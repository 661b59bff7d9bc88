"""The OpenAPI document agrees with the route table; `tests/openapi/test_document.py` validates it."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from fairlead_api.problems import CATALOGUE
from fairlead_api.routes import ROUTES, Route
from fairlead_api.routes.definitions import Listener
from fairlead_api.routes.openapi import document


@cache
def described_paths() -> dict[str, dict[str, dict[str, object]]]:
    """Return the description of each path and method in the document, cached for all routes."""
    return msgspec.convert(document("0.1.0")["paths"], dict[str, dict[str, dict[str, object]]])


def operation(entry: Route) -> dict[str, object]:
    """Return the operation of a route in the document."""
    return described_paths()[entry.path][entry.method.lower()]


def test_the_document_is_plain_json_and_names_the_release() -> None:
    """The document is unchanged when served as JSON, is the same each time, and contains the release."""
    described = document("1.2.3")

    read_back: object = msgspec.json.decode(msgspec.json.encode(described))

    assert read_back == described
    assert msgspec.convert(described["info"], dict[str, object])["version"] == "1.2.3"
    assert document("1.2.3") == described


@pytest.mark.slow
@pytest.mark.parametrize("entry", ROUTES, ids=lambda entry: entry.name)
def test_every_route_is_described(entry: Route) -> None:
    """Every route has an operation with its parameters, bodies, answers and problems."""
    described = msgspec.json.encode(operation(entry)).decode()
    responses = msgspec.convert(operation(entry)["responses"], dict[str, object])
    statuses = {form.status for form in entry.answers} | {CATALOGUE[code].status for code in entry.problems}

    assert operation(entry)["operationId"] == entry.name
    for name in (*entry.path_parameters, *(parameter.name for parameter in entry.query)):
        assert f'"name":"{name}"' in described
    for media_type in (*entry.body_types, *entry.answer_types):
        assert f'"{media_type}"' in described
    assert {str(status) for status in statuses} <= set(responses)


def test_a_listener_describes_its_own_calls() -> None:
    """The document for one listener contains no calls to other listeners."""
    described = msgspec.convert(document("0.1.0", {Listener.DATA})["paths"], dict[str, object])

    assert set(described) == {route.path for route in ROUTES if route.listener is Listener.DATA}


def test_every_problem_is_a_component() -> None:
    """Every problem code is a component of the document, for client generators."""
    components = msgspec.convert(document("0.1.0")["components"], dict[str, dict[str, object]])

    assert set(components["responses"]) == set(CATALOGUE)
    assert {"Problem", "CreateTopicRequest", "TopicDescription", "JsonFetchAnswer"} <= set(
        components["schemas"]
    )
