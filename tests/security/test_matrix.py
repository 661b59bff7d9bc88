"""Calls to every route by every kind of caller on a real broker (proof V1); the route table determines the statuses."""

from __future__ import annotations

from statistics import quantiles
from typing import Final

import pytest

from broker_kit import Answer
from fairlead import clock
from fairlead_api.access_needs import Audience, NameSource
from fairlead_api.routes import ROUTES, Listener, Route
from fairlead_api.token_text import TokenText
from fairlead_broker.credentials import failure_budget
from figures import record
from security_kit import Secured, outcome, path_of, resource_of

SERVED: Final = [route for route in ROUTES if route.listener is Listener.DATA]
BY_PATH: Final = [route for route in SERVED if route.access.gate]
ABOUT_NO_CLUSTER: Final = {"release": "", "cluster": "", "cluster_id": "", "feature_level": 0}
"""Fields of the supported versions that only callers with a token are shown."""


async def outcomes(secured: Secured, token: str | None, routes: list[Route], **names: str) -> dict[str, str]:
    """Return the outcome of each route for one caller. The requests have empty bodies, so nothing changes."""
    found = {}
    for route in routes:
        answer = await secured.call(route.method, path_of(route, **names), token)
        found[route.name] = outcome(answer)
    return found


async def test_callers_without_a_valid_token_reach_only_public_routes(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that is not public gets 401 without a token, or with an unknown, changed, expired or revoked token.

    The supported versions, which are public, describe the cluster only to a caller with a token.
    """
    # The number of bad tokens from one address is limited, and this test sends more.
    monkeypatch.setattr(failure_budget, "BURST", 1e9)
    expired = await secured.token("user:old", expires_in_seconds=1)
    revoked, nobody = await secured.token("user:gone"), await secured.token("user:nobody")
    stranger, known = [
        (await secured.call("GET", "/v1/versions", token)).json for token in (None, nobody["token"])
    ]
    await secured.acl("user:*", "all", "topic:*")
    await secured.call("DELETE", f"/v1/tokens/{revoked['token_id']}", secured.admin)
    broker = secured.cluster.broker(1)
    # The token has expired once the broker's clock is a second later.
    stored = broker.metadata.tokens[expired["token_id"]].value
    while broker.clock.now_us() <= (stored.expires_us or 0):
        await secured.call("GET", "/v1/versions")
    unknown = TokenText("0" * 12, "s" * 43).text
    public = {route.name for route in SERVED if route.access.audience is Audience.PUBLIC}
    expected = {r.name: "admitted" if r.name in public else "unauthenticated" for r in SERVED}

    assert await outcomes(secured, None, SERVED) == expected
    # A bad token is never treated as a missing token, so public calls with a bad token are refused as well.
    refused = dict.fromkeys(expected, "unauthenticated")
    for token in (unknown, unknown[:-1] + "x", "a.b.c", expired["token"], revoked["token"]):
        assert await outcomes(secured, token, SERVED) == refused
    assert stranger == known | ABOUT_NO_CLUSTER
    assert all(known[name] for name in ABOUT_NO_CLUSTER)
    told = await secured.call("GET", "/v1/whoami", expired["token"])
    assert told.json["reason"] == "expired"
    assert told.headers["www-authenticate"] == 'Bearer realm="fairlead"'


async def test_a_caller_without_rights_is_refused_by_every_need(secured: Secured) -> None:
    """A known caller without ACLs makes only the calls that need no right; the superuser is never refused."""
    nobody = (await secured.token("user:nobody"))["token"]
    expected = {route.name: "forbidden" if route.access.gate else "admitted" for route in SERVED}

    assert await outcomes(secured, nobody, SERVED) == expected
    assert set((await outcomes(secured, secured.admin, SERVED)).values()) == {"admitted"}


async def test_each_right_alone_admits_exactly_its_routes(secured: Secured) -> None:
    """A call is admitted with exactly the rights that it needs, and refused if one of them is missing or denied."""
    for number, route in enumerate(BY_PATH):
        caller = f"user:c{number}"
        token = (await secured.token(caller))["token"]
        *others, last = route.access.gate
        for need in others:
            await secured.acl(caller, need.operation, resource_of(need.kind))
        before = outcome(await secured.call(route.method, path_of(route), token))
        await secured.acl(caller, last.operation, resource_of(last.kind))
        after = outcome(await secured.call(route.method, path_of(route), token))
        deny = await secured.acl(caller, "describe", resource_of(last.kind), effect="deny")
        denied = outcome(await secured.call(route.method, path_of(route), token))
        await secured.call("DELETE", f"/v1/acls/{deny}", secured.admin)
        again = outcome(await secured.call(route.method, path_of(route), token))

        assert (before, after, denied, again) == ("forbidden", "admitted", "forbidden", "admitted"), (
            route.name
        )


async def test_patterns_admit_their_names_only(secured: Secured) -> None:
    """A prefix admits the names of its tenant, not those of another tenant, and not internal names."""
    token = (await secured.token("user:shop.app"))["token"]
    await secured.acl("user:shop.*", "all", "topic:shop.*")
    await secured.acl("user:shop.*", "all", "group:*")
    named = [r for r in BY_PATH if {need.kind.value for need in r.access.gate} == {"topic"}]
    inside = await outcomes(secured, token, named)
    other = await outcomes(secured, token, named, topic="other.orders")
    hidden = await secured.call("GET", "/v1/groups/__internal", token)

    assert set(inside.values()) == {"admitted"}
    assert set(other.values()) == {"forbidden"}
    assert hidden.code == "forbidden"


async def test_hidden_and_unknown_names_are_answered_alike(secured: Secured) -> None:
    """A topic that the caller may not describe looks like a missing topic, except for the name (rule Z7, proof V3)."""
    token = (await secured.token("user:ann"))["token"]
    made = await secured.call("POST", "/v1/topics", secured.admin, {"name": "aaaa", "partitions": 1})
    assert made.status == 201, made
    topics = [route for route in BY_PATH if any(n.source is NameSource.PATH for n in route.access.gate)]
    for route in topics:
        answers = [
            await secured.call(route.method, path_of(route, topic=name, group=name), token)
            for name in ("aaaa", "bbbb")
        ]
        known, unknown = ((a.status, a.body.replace(b"bbbb", b"aaaa"), _kept(a)) for a in answers)

        assert known == unknown, route.name
    listed = await secured.call("GET", "/v1/topics", token)
    metadata = await secured.call("GET", "/v1/metadata", token)
    named = [await secured.call("GET", f"/v1/metadata?topics={name}", token) for name in ("aaaa", "bbbb")]

    assert (listed.json["items"], metadata.json["topics"]) == ([], [])
    assert [answer.code for answer in named] == ["forbidden", "forbidden"]


@pytest.mark.serial
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.scenario)])
async def test_hidden_and_unknown_names_take_the_same_time(secured: Secured, count: int) -> None:
    """The median times of answers about hidden and missing topics differ by less than their spread (proof V3)."""
    token = (await secured.token("user:ann"))["token"]
    made = await secured.call("POST", "/v1/topics", secured.admin, {"name": "aaaa", "partitions": 1})
    assert made.status == 201, made
    figures: dict[str, dict[str, float]] = {}
    for route in ("/v1/topics/{}", "/v1/topics/{}/partitions/0/records"):
        taken: dict[str, list[float]] = {"aaaa": [], "bbbb": []}
        for _ in range(count):
            for name, times in taken.items():
                begun = clock.monotonic()
                answer = await secured.call("GET", route.format(name), token)
                times.append(clock.monotonic() - begun)
                assert answer.status == 403
        known, unknown = (quantiles(times) for times in taken.values())
        spread = max(known[2] - known[0], unknown[2] - unknown[0])
        medians = {"hidden_median_ms": known[1], "missing_median_ms": unknown[1], "spread_ms": spread}
        figures[route] = {name: round(value * 1000, 3) for name, value in medians.items()}
        record("time of answers about hidden and missing names", {"answers": count, "routes": figures})

        assert abs(known[1] - unknown[1]) <= spread, (route, known, unknown)


def _kept(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "date"}
