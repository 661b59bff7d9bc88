"""Tests of calls that are generated from the OpenAPI document, valid and invalid, against a real broker.

Schemathesis generates examples for each route of the data listener: values at the limits of their schemas, invalid
values, and values found by a search. Valid names are often replaced by names of existing resources, because most calls
would otherwise end with "not found". `make prove PROVE=searches` runs many more examples, which differ in each run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from requests.adapters import HTTPAdapter
from schemathesis.specs.openapi import checks
from urllib3.util import Retry

import fairlead.testing
from fairlead_api.bodies.media_types import ARROW_STREAM, BATCHES, FRAMES, NDJSON, PROBLEM
from fairlead_api.identifiers import is_name
from fairlead_api.problems import CATALOGUE, ProblemKind
from fairlead_api.routes import route
from fairlead_api.routes.openapi import document

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

TOPIC: Final = "flights"
GROUP: Final = "readers"
PARTITIONS: Final = 3
ANSWER_SECONDS_MAX: Final = 60
SEARCHING: Final = settings.default is not None and settings.default.max_examples > 1000
SEARCH: Final = settings(
    max_examples=300 if SEARCHING else 2,
    derandomize=not SEARCHING,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
CHECKS: Final = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.allow_header_conformance,
]
SCHEMA: Final = schemathesis.openapi.from_dict(document("of the test")).exclude(
    func=lambda context: context.operation.definition.raw["x-fairlead-listener"] != "data"
)

# Invalid data may be refused with any error status, such as 413 for a body over a limit.
SCHEMA.config.checks.negative_data_rejection.expected_statuses = ["4XX", "5XX"]


@schemathesis.serializer(NDJSON, ARROW_STREAM, BATCHES, FRAMES)
def plain(context: object, value: object) -> bytes:
    """Return a non-JSON body unchanged, as bytes or text."""
    del context
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """Run a separate broker, since some of these calls drain it."""
    with fairlead.testing.running_cluster() as bootstrap:
        yield bootstrap


@pytest.fixture
def furnished(base: str) -> Iterator[str]:
    """Create a topic with records and a group, and end the drain of the broker after the calls."""
    calls = requests.Session()
    # Like clients, the fixture retries calls that the broker refuses for a moment after earlier calls of a test.
    patience = Retry(total=10, status_forcelist={503}, allowed_methods=None)
    calls.mount("http://", HTTPAdapter(max_retries=patience))
    specification = {"name": TOPIC, "partitions": PARTITIONS}
    assert calls.post(f"{base}/v1/topics", json=specification, timeout=30).status_code in {200, 201, 409}
    records = {"records": [{"key": str(number), "value": "x"} for number in range(9)]}
    assert calls.post(f"{base}/v1/topics/{TOPIC}/records", json=records, timeout=30).status_code == 200
    offsets = {
        "member_id": None,
        "member_epoch": -1,
        "offsets": [{"topic": TOPIC, "partition": 0, "offset": 1}],
    }
    # A group with members from earlier calls refuses commits without a member.
    committed = calls.put(f"{base}/v1/groups/{GROUP}/offsets", json=offsets, timeout=30)
    assert committed.status_code in {200, 409}
    yield base
    for verb in ("undrain", "uncordon"):
        assert calls.post(f"{base}/v1/brokers/0:{verb}", timeout=30).status_code == 200


def stage(case: schemathesis.Case) -> None:
    """Replace names so that most calls find an existing resource and no call waits for a missing resource."""
    parameters = case.path_parameters
    named = {"topic": TOPIC, "group": GROUP} if case.operation.label != "DELETE /v1/topics/{topic}" else {}
    for name, existing in named.items():
        given = parameters.get(name)
        if isinstance(given, str) and is_name(given) and len(given) % 4:
            parameters[name] = existing
    for name, count in (("partition", PARTITIONS), ("broker", 1)):
        given = parameters.get(name)
        if type(given) is int and given >= 0 and given % 4:
            parameters[name] = given % count
    match case.operation.definition.raw["operationId"]:
        case "tail_topic":
            case.query.setdefault("from", "earliest")
            case.query.setdefault("max_records", 1)
            shorten(case.query, "max_seconds", 1)
        case "fetch_partition":
            shorten(case.query, "max_wait_ms", 10)
        case "fetch" if isinstance(case.body, dict):
            shorten(case.body, "max_wait_ms", 10)


def shorten(values: dict[str, object], name: str, most: int) -> None:
    """Shorten an optional wait."""
    given = values.setdefault(name, most)
    if type(given) is int and most < given <= 60_000:
        values[name] = most


@SCHEMA.parametrize()
@SEARCH
def test_every_answer_is_in_the_document(case: schemathesis.Case, furnished: str) -> None:
    """No call ends with an internal error; status, type, headers and body of each answer match the document."""
    stage(case)
    response = case.call(base_url=furnished, timeout=ANSWER_SECONDS_MAX)
    case.validate_response(response, checks=CHECKS)

    if response.status_code >= 500:
        problem = json.loads(response.content)
        assert response.headers["content-type"] == [PROBLEM]
        assert CATALOGUE[problem["code"]].kind is not ProblemKind.BUG, problem
        assert problem["code"] in route(case.operation.definition.raw["operationId"]).problems, problem
