"""Requests from web pages of allowed origins and of other origins, and brokers that allow none."""

import pytest
from pydantic import ValidationError

from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.settings import BrokerSettings
from security_kit import path_of

JSON = {"content-type": "application/json"}
SHOP = "https://shop.example"
ASK = {
    "origin": SHOP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type,fairlead-topic-id",
}


def cors_of(answer) -> dict[str, str]:
    """Return the CORS headers of an answer."""
    return {
        name.removeprefix("access-control-"): text
        for name, text in answer.headers.items()
        if name.startswith("access-control-")
    }


async def test_an_origin_that_is_allowed(cluster) -> None:
    """A preflight from an allowed origin has no effect, and answers and refusals name the origin."""
    broker = await cluster.start(cors_origins=f"{SHOP}, http://127.0.0.1:8080")
    api = await cluster.client(broker.addresses.data)
    preflight = await api.call("OPTIONS", "/v1/topics/none/records", headers=ASK)
    answer = await api.call("GET", "/v1/versions", headers={"origin": SHOP})
    refusal = await api.call("GET", "/v1/topics/none", headers={"origin": SHOP})
    other = await api.call("GET", "/v1/versions", headers={"origin": "https://other.example"})
    none = await api.get("/v1/versions")

    assert (preflight.status, preflight.body) == (204, b"")
    assert cors_of(preflight)["allow-origin"] == SHOP
    assert cors_of(preflight)["allow-headers"] == "content-type,fairlead-topic-id"
    assert "POST" in cors_of(preflight)["allow-methods"]
    assert (answer.status, cors_of(answer)["allow-origin"]) == (200, SHOP)
    assert "Fairlead-Next-Offset" in cors_of(answer)["expose-headers"]
    assert (refusal.status, cors_of(refusal)["allow-origin"]) == (404, SHOP)
    assert (other.status, cors_of(other), other.headers["vary"]) == (200, {}, "origin")
    assert cors_of(none) == {}


async def test_all_origins(cluster) -> None:
    """A broker with `*` allows every origin."""
    broker = await cluster.start(cors_origins=["*"])
    api = await cluster.client(broker.addresses.data)
    answer = await api.call("GET", "/v1/versions", headers={"origin": "null"})

    assert cors_of(answer)["allow-origin"] == "*"


async def test_none_by_default(api) -> None:
    """A broker without allowed origins refuses preflights as unknown calls and sends no CORS headers."""
    preflight = await api.call("OPTIONS", "/v1/versions", headers=ASK)
    answer = await api.call("GET", "/v1/versions", headers={"origin": SHOP})

    assert (preflight.status, preflight.code) == (405, "method_not_allowed")
    assert cors_of(answer) == {}


@pytest.mark.parametrize("wrong", ["shop.example", "https://shop.example/path", "", "https://"])
def test_an_invalid_origin(wrong: str) -> None:
    """A broker does not start with an invalid origin, which its message names."""
    with pytest.raises(ValidationError):
        BrokerSettings(cors_origins=wrong)


async def test_pages_of_other_sites_do_not_reach_a_loopback_broker(cluster) -> None:
    """A loopback broker serves no calls with foreign host names, and accepts changes only from allowed origins."""
    broker = await cluster.start(hosts="log.example", cors_origins=SHOP)
    api = await cluster.client(broker.addresses.data)
    ops = await cluster.client(broker.addresses.ops, http1=True)
    rebound = await api.call("GET", "/v1/topics", headers={"host": "page.example"})
    listed = await api.call("GET", "/v1/topics", headers={"host": "log.example"})
    shop = await api.call(
        "POST",
        "/v1/topics",
        b'{"name": "clicks"}',
        headers={"origin": SHOP, "content-type": "application/json"},
    )
    scraped = [
        (await ops.call("GET", path, headers={"host": host})).status
        for path in ("/metrics", "/healthz")
        for host in ("page.example", "log.example")
    ]

    assert (rebound.status, rebound.code) == (403, "forbidden")
    assert (listed.status, listed.json["items"]) == (200, [])
    assert shop.status == 201
    assert scraped == [403, 200, 200, 200]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_pages_of_other_sites_change_nothing(cluster, listen: str) -> None:
    """Every call but GET from a page of another site is refused by each data listener, without effects (rule T13)."""
    broker = await cluster.start(listen=listen, advertise="127.0.0.1:9520", security="open")
    api = await cluster.client(f"127.0.0.1:{broker.addresses.data.rpartition(':')[2]}")
    await api.create("flights")
    changing = [
        route for route in ROUTES if route.listener is Listener.DATA and route.method not in {"GET", "HEAD"}
    ]
    await api.end_offset("flights")
    before = broker.broker.metadata.revision
    answers = {
        (route.name, *page): await api.call(
            route.method, path_of(route, topic="flights"), headers={**JSON, **dict([page])}
        )
        for route in changing
        for page in (("origin", "https://page.example"), ("sec-fetch-site", "cross-site"))
    }

    assert {each: answer.status for each, answer in answers.items() if answer.status != 403} == {}
    assert {answer.code for answer in answers.values()} == {"forbidden"}
    assert broker.broker.metadata.revision == before
    assert await api.end_offset("flights") == 0


@pytest.mark.parametrize("wrong", ["log.example:9520", "http://log.example", ""])
def test_an_invalid_host(wrong: str) -> None:
    """A broker does not start with an invalid host name, which its message names."""
    with pytest.raises(ValidationError):
        BrokerSettings(hosts=wrong)
