"""Requests that the listeners serve, and paths that they refuse."""

import pytest
from pyreqwest.client import ClientBuilder

from fairlead_api.problems import CATALOGUE
from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.wiring.start import RunningBroker
from security_kit import path_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def broker(shared) -> RunningBroker:
    """Return the shared broker."""
    return shared.broker


@pytest.fixture
def api(shared):
    """Return a client of the data listener."""
    return shared.api


@pytest.fixture
def ops(shared):
    """Return a client of the ops listener."""
    return shared.ops


@pytest.mark.parametrize("entry", ROUTES, ids=lambda entry: entry.name)
async def test_every_route_is_served_by_its_listener(entry, api, ops, broker: RunningBroker) -> None:
    """Every route is served by its own listener and by no other."""
    path = path_of(entry, broker="0")
    answers = {
        Listener.DATA: await api.call(entry.method, path),
        Listener.OPS: await ops.call(entry.method, path),
    }
    own = answers.pop(entry.listener)
    [other] = answers.values()

    assert "json" not in own.headers.get("content-type", "") or own.json.get("code") not in {
        "route_not_found",
        "method_not_allowed",
        "internal",
    }
    assert own.status != 500
    assert (other.status, other.code) == (404, "route_not_found")


async def test_nothing_else_is_served(api) -> None:
    """Requests to unknown paths and to paths with an empty segment are refused."""
    for path in (
        "/",
        "/docs/",
        "/problems/",
        "/v1/brokers//config",
        "/docs/start.js",
        "/v1",
        "/v1/topics/",
        "/v1/groups/readers/members",
    ):
        answer = await api.get(path)

        assert answer.status in {404, 422}, path
        assert answer.code in {"route_not_found", "invalid_topic_name"}, path


async def test_another_version(api) -> None:
    """A request with an unsupported version is refused with the supported versions."""
    answer = await api.get("/v2/topics")

    assert (answer.status, answer.code) == (400, "unsupported_version")
    assert answer.json["supported"] == (await api.get("/v1/versions")).json["api"]


@pytest.mark.parametrize(
    "entry", [entry for entry in ROUTES if entry.listener is Listener.DATA], ids=lambda entry: entry.name
)
async def test_accept_is_used_where_the_contract_says_so(entry, api) -> None:
    """A request whose answer has several forms is refused with an unsupported Accept; other requests ignore Accept."""
    headers = {"accept": "image/png"}
    if entry.body_types:
        headers["content-type"] = entry.body_types[0]
    answer = await api.call(entry.method, path_of(entry, broker="0"), b"", headers)

    assert (answer.status == 406) is ("not_acceptable" in entry.problems)


async def test_wrong_method(api) -> None:
    """A request with a method that its path does not support gets 405 with Allow."""
    answer = await api.call("PUT", "/v1/topics/flights")

    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH"


async def test_head_has_the_headers_of_get(api) -> None:
    """HEAD requests have the headers of GET and no body."""
    get = await api.get("/v1/versions")
    head = await api.call("HEAD", "/v1/versions")

    assert head.status == 200
    assert head.body == b""
    assert head.headers["content-length"] == get.headers["content-length"]


async def test_peer_listener_serves_brokers_alone(broker: RunningBroker) -> None:
    """A request to the peer listener without proof of being a broker is refused."""
    async with ClientBuilder().http2_prior_knowledge().build() as client:
        for path, status, code in (
            ("/", 404, "route_not_found"),
            ("/metrics", 404, "route_not_found"),
            ("/v1/topics", 403, "peer_refused"),
            ("/v1/versions", 403, "peer_refused"),
        ):
            answer = await client.get(f"http://{broker.addresses.peer}{path}").build().send()

            assert answer.status == status
            assert (await answer.json())["code"] == code


async def test_health_and_metrics(api, ops) -> None:
    """A broker that serves is alive and ready, and counts its answered requests."""
    before = (await ops.get("/metrics")).body
    await api.get("/v1/versions")
    alive, ready, metrics = [await ops.get(path) for path in ("/healthz", "/readyz", "/metrics")]

    assert (alive.status, alive.body) == (200, b"alive\n")
    assert (ready.status, ready.body) == (200, b"ready\n")
    assert served(metrics.body, "versions") == served(before, "versions") + 1


@pytest.mark.parametrize("version", ["abc", "1.x", ".."])
async def test_metrics_without_a_valid_version(ops, version: str) -> None:
    """Metrics have the plain form when the requested version is invalid."""
    metrics = await ops.get("/metrics", accept=f"application/openmetrics-text;version={version}")

    assert (metrics.status, metrics.headers["content-type"][:10]) == (200, "text/plain")
    assert b"fairlead_build_info" in metrics.body


def served(metrics: bytes, route: str) -> float:
    """Return how many requests to a route were answered with 200."""
    start = f'fairlead_request_duration_seconds_count{{route="{route}",status="200"}} '
    return sum(float(line[len(start) :]) for line in metrics.decode().splitlines() if line.startswith(start))


async def test_openapi_is_that_of_the_table(api) -> None:
    """Every path that the broker serves is described by the OpenAPI document."""
    document = (await api.get("/openapi.json")).json

    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {entry.path for entry in ROUTES if entry.listener is Listener.DATA}


@pytest.mark.parametrize("accept", ["text/plain", "text/html"])
async def test_every_problem_has_its_page(api, accept: str) -> None:
    """Every problem's `type` leads to a page about the problem, in both forms."""
    for code, definition in CATALOGUE.items():
        page = await api.get(f"/problems/{code}", accept=accept)

        assert page.status == 200
        assert page.headers["content-type"] == f"{accept}; charset=utf-8"
        assert definition.title.split("'")[0] in page.body.decode()


async def test_unknown_problem_page(api) -> None:
    """An unknown problem code has no page and is not echoed as markup."""
    answer = await api.get("/problems/%3Cscript%3E", accept="text/html")

    assert (answer.status, answer.headers["content-type"]) == (404, "application/problem+json")


async def test_versions_and_cluster(api, broker: RunningBroker) -> None:
    """A broker answers with its versions, its id and the addresses of its cluster's brokers."""
    versions = (await api.get("/v1/versions")).json
    cluster = (await api.get("/v1/cluster")).json
    brokers = (await api.get("/v1/brokers")).json
    [described] = brokers["items"]

    assert (versions["api"], versions["batch_formats"]) == (["v1"], [1])
    assert versions["cluster_id"] == cluster["cluster_id"]
    assert cluster["controller"] == 0
    assert cluster["brokers"] == brokers["items"]
    assert brokers["items"] == [
        {
            "id": 0,
            "address": f"http://{broker.addresses.data}",
            "rack": None,
            # Other tests may have cordoned or drained the shared broker.
            "state": described["state"],
            "cordoned": described["cordoned"],
            "immovable": described["immovable"],
            "external_address": described["external_address"],
        }
    ]
    assert described["state"] in {"running", "draining"}
