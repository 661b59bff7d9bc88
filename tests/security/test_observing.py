"""`observe` reports exactly the refusals of `enforce` (proof V16), and no mode locks every caller out (proof V17)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from broker_kit import Calls
from cluster_kit import Cluster, until
from fairlead_api.identifiers import BrokerId
from fairlead_api.routes import ROUTES, Listener, Route
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Delete, Put
from figures import record
from security_kit import Secured, path_of, resource_of

CALLED: Final = [route for route in ROUTES if route.listener is Listener.DATA and route.access.gate]


def denials(route: Route, principal: str) -> set[tuple[str, str, str]]:
    """Return the rights that the path of a route needs."""
    return {(principal, need.operation, resource_of(need.kind)) for need in route.access.gate}


async def test_observe_lists_what_enforce_refuses(open_: Secured) -> None:
    """In `observe` mode, no call is refused; the list has the missing rights of calls that `enforce` refuses (rule Z3).

    Of each call, the list has the first missing right.

    After the listed rights have been granted, `enforce` refuses none of the listed calls.
    """
    principals = ["user:ann", "user:bob"]
    tokens = {each: (await open_.token(each))["token"] for each in principals}
    await open_.acl("user:ann", "all", "topic:shop.*")
    await open_.acl("user:bob", "describe", "cluster:*")
    await open_.acl("user:*", "delete", "group:*", effect="deny")

    async def refused() -> set[tuple[str, str]]:
        found = set()
        for principal in principals:
            for route in CALLED:
                answer = await open_.call(route.method, path_of(route), tokens[principal])
                problem = answer.headers.get("content-type") == "application/problem+json"
                if problem and answer.code in ("forbidden", "unauthenticated"):
                    found.add((principal, route.name))
        return found

    assert await open_.set_mode(open_.admin, "observe") == 200
    assert await refused() == set()
    missing = await open_.denied()
    assert await open_.set_mode(open_.admin, "enforce") == 200
    held = await refused()
    needed = {(p, r.name) for p in principals for r in CALLED if denials(r, p) & missing}

    assert held == needed
    for principal, operation, resource in missing:
        await open_.acl(principal, operation, resource)
    assert {name for _, name in await refused()} == {
        r.name
        for r in CALLED
        if any(need.operation == "delete" and need.kind == "group" for need in r.access.gate)
    }


async def test_the_list_has_the_denials_of_every_broker(tmp_path: Path) -> None:
    """The list adds the counts of all brokers, and names the brokers that did not answer (rule Z3)."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, superusers="user:root")
        addresses = [str(cluster.brokers[number].addresses.data) for number in (1, 2)]
        async with Calls(addresses[0]) as first, Calls(addresses[1]) as second:
            made = await first.post("/v1/tokens", {"principal": "user:root"})
            one, two = (Secured(cluster, calls, made.json["token"]) for calls in (first, second))
            ann = (await one.token("user:ann"))["token"]
            assert await one.set_mode(one.admin, "observe") == 200
            await until(
                lambda: cluster.broker(2).security.mode == "observe", "the second broker has the mode"
            )
            for secured, topic in ((one, "both"), (two, "both"), (two, "second")):
                await secured.call("GET", f"/v1/topics/{topic}", ann)
            status = (await one.call("GET", "/v1/security", one.admin)).json
            own = (await one.call("GET", "/v1/security", one.admin, fairlead_forward="never")).json
            async with registered_without_process(cluster, 9):
                later = (await two.call("GET", "/v1/security", two.admin)).json
    finally:
        await cluster.close()

    counts = [
        {each["resource"]: each["count"] for each in found["would_be_denied"]}
        for found in (status, own, later)
    ]
    assert counts == [
        {"topic:both": 2, "topic:second": 1},
        {"topic:both": 1},
        {"topic:both": 2, "topic:second": 1},
    ]
    assert [found["silent_brokers"] for found in (status, own, later)] == [[], [], [9]]


@asynccontextmanager
async def registered_without_process(cluster: Cluster, broker: int) -> AsyncIterator[None]:
    """Store the registration of a broker at whose address no process listens, during the block."""
    entry = cluster.broker(2).entry
    known = entry.mirror.metadata.brokers[BrokerId(2)].value
    addresses = msgspec.structs.replace(known.addresses, peer="127.0.0.1:1")
    key = entry.keys.broker(BrokerId(broker))
    put = Put(key, encode(msgspec.structs.replace(known, addresses=addresses)))
    await entry.mirror.wait_for((await entry.coordination.transact((), (put,))).revision)
    yield
    await entry.mirror.wait_for((await entry.coordination.transact((), (Delete(key),))).revision)


@pytest.mark.parametrize("states", [6, pytest.param(200, marks=pytest.mark.scenario)])
async def test_enforce_is_accepted_from_callers_that_can_set_it_back(open_: Secured, states: int) -> None:
    """With random ACLs, a change to `enforce` is accepted exactly from callers that may undo the change."""
    chance = random.Random(states)
    callers = [f"user:c{number}" for number in range(3)]
    tokens: dict[str, str | None] = {each: (await open_.token(each))["token"] for each in callers}
    tokens["anonymous"] = None
    outcomes = Counter[int]()
    for _ in range(states):
        acls = []
        for _ in range(chance.randint(2, 6)):
            principal = chance.choice([*callers, "user:*", "*", "anonymous"])
            operations = ",".join(chance.sample(["alter", "describe", "all", "read"], chance.randint(1, 2)))
            resource = chance.choice(["cluster:*", "security:*"])
            effect = "deny" if chance.random() < 0.2 else "allow"
            acls.append(await open_.acl(principal, operations, resource, effect))
        for caller, token in tokens.items():
            accepted = await open_.set_mode(token, "enforce")
            outcomes[accepted] += 1
            if accepted == 200:
                assert await open_.set_mode(token, None) == 200, (caller, acls)
            else:
                assert accepted == 409, (caller, acls)
        for acl in set(acls):
            assert (await open_.call("DELETE", f"/v1/acls/{acl}", open_.admin)).status == 200

    figures = {"states": states, "accepted_and_undone": outcomes[200], "refused": outcomes[409]}
    record("changes to enforce", figures)

    assert outcomes.keys() == {200, 409}
    assert open_.cluster.broker(1).security.mode == "open"
