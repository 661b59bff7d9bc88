"""Calls to every route by every kind of caller over TLS, on three brokers that forward (proofs V1, V8; rules A21, Z10).

The expected outcomes are computed from the route table and the rules of each caller, by a naive walk over the rules.
Calls with the name of a topic or a group are made with an existing, a hidden and an unknown name.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from access_kit import naive
from broker_kit import Answer, Calls
from certificate_kit import Authority
from cluster_kit import Cluster
from fairlead_api.access_needs import SINGLE_KINDS, Audience, Kind, Operation
from fairlead_api.routes import ROUTES, Listener, Route
from fairlead_api.token_text import TokenText
from fairlead_broker.access.acl_index import Acl, Effect
from fairlead_broker.access.caller import Caller
from fairlead_broker.credentials import failure_budget
from fairlead_broker.peers.forwarded_callers import FORWARDED_CALLER
from fairlead_broker.peers.identity import PEER_SECRET
from figures import record
from issuer_kit import TestIssuer
from security_kit import NAMES, REFUSALS, Secured, outcome, path_of, resource_of
from waiting import pause

TAIL: Final = "tail_topic"
HIDDEN: Final = {"topic": "vault.orders", "group": "vault.readers"}
"""Names of resources that exist, which only rules for all topics or all groups allow."""
UNKNOWN: Final = {"topic": "vault.absent", "group": "vault.missing"}
"""Names of resources that do not exist, as long as the names of `HIDDEN`."""
SUPERUSERS: Final = ("user:admin", "group:corp:platform")
BROKERS: Final = (1, 2, 3)
REVOCATIONS: Final = 6
REVOKED_SECONDS_MAX: Final = 1.0
"""Maximum time until no broker accepts a revoked token any more (rule Z10)."""


def order(route: Route) -> tuple[bool, str]:
    """Sort calls that delete something last, so that other calls find the resources that they name."""
    return route.method == "DELETE", route.name


ROUTES_BY_ORDER: Final = sorted((each for each in ROUTES if each.listener is Listener.DATA), key=order)
NAMED: Final = [each for each in ROUTES_BY_ORDER if any(f"{{{kind}}}" in each.path for kind in HIDDEN)]
"""Routes with the name of a topic or a group in the path."""


@dataclass
class Person:
    """A kind of caller: its header with the credential, its names, and its rules."""

    token: str | None
    names: tuple[str, ...] = ("anonymous",)
    """Principal and groups; empty for a token that no broker accepts."""
    rules: tuple[str, ...] = ()
    """ACLs: effect, principal, operations and resource."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Scene:
    """Three brokers in `enforce` mode with TLS, and two issuers."""

    secured: list[Secured]
    corp: TestIssuer
    accounts: TestIssuer
    cluster: Cluster

    async def restore(self) -> None:
        """Create the existing and the hidden topic and group, if they do not exist yet or callers have deleted them."""
        first = self.secured[0]
        for names in (NAMES, HIDDEN):
            if names["topic"] not in self.cluster.controller.metadata.topics:
                await self.cluster.topic(names["topic"], partitions=1)
            offset = {"topic": names["topic"], "partition": 0, "offset": 0}
            path = f"/v1/groups/{names['group']}/offsets"
            committed = await first.call("PUT", path, first.admin, {"offsets": [offset]})
            assert committed.status == 200, committed

    async def ask(self, place: int, route: Route, person: Person, names: Mapping[str, str]) -> Answer:
        """Call a route as a caller, with these names in the path."""
        # An option that does not exist ends the tail, which would otherwise not end.
        path = path_of(route, **names) + ("?odd=1" if route.name == TAIL else "")
        return await self.secured[place % len(BROKERS)].call(
            route.method, path, person.token, **person.headers
        )


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Yield a cluster of three brokers."""
    # The number of bad tokens from one address is limited, and these tests send more.
    monkeypatch.setattr(failure_budget, "BURST", 1e9)
    authority = Authority.make()
    tls = authority.issue().write(tmp_path / "tls", authority)
    corp, accounts = TestIssuer("https://corp.example"), TestIssuer("https://k8s.example")
    issuers = {}
    for name, issuer in (("corp", corp), ("k8s", accounts)):
        (tmp_path / f"{name}.json").write_bytes(issuer.jwks)
        issuers[name] = {
            "issuer": issuer.issuer,
            "jwks": str(tmp_path / f"{name}.json"),
            "audience": "fairlead/fairlead",
            "groups_claim": None if name == "k8s" else "groups",
            "kubernetes": name == "k8s",
        }
    file = tmp_path / "admin.token"
    cluster = await Cluster.open(tmp_path)
    calls: list[Calls] = []
    try:
        await cluster.start(
            *BROKERS,
            security="enforce",
            admin_token_file=file,
            superusers=SUPERUSERS[1],
            tls=tls,
            issuers=issuers,
        )
        calls += [Calls(str(each.addresses.data_tls), authority.pem) for each in cluster.brokers.values()]
        admin = file.read_text().strip()
        yield Scene([Secured(cluster, each, admin) for each in calls], corp, accounts, cluster)
    finally:
        for each in calls:
            await each.__aexit__()
        await cluster.close()


async def persons(scene: Scene) -> dict[str, Person]:
    """Return every kind of caller, whose ACLs are not created yet."""
    first = scene.secured[0]
    revoked = await first.token("user:revoked")
    await first.call("DELETE", f"/v1/tokens/{revoked['token_id']}", first.admin)
    own = {
        name: (await first.token(f"user:{name}"))["token"]
        for name in ("nobody", "tenant", "describer", "refused")
    }
    now = int(time.time())
    proof = dict([scene.cluster.broker(2).peer_side.peers.evidence(scene.cluster.broker(1).settings.id)])  # type: ignore[arg-type]
    account = "system:serviceaccount:shop:orders"
    return {
        "none": Person(None),
        "unknown": Person(TokenText("0" * 12, "s" * 43).text, ()),
        "revoked": Person(revoked["token"], ()),
        "expired": Person(scene.corp.token(iat=now - 900, exp=now - 300), ()),
        "another audience": Person(scene.corp.token(aud="fairlead/other"), ()),
        "another issuer": Person(TestIssuer("https://other.example").token(), ()),
        "broker on the wrong listener": Person(
            None, headers={**proof, PEER_SECRET: "x", FORWARDED_CALLER: "user:admin"}
        ),
        "nobody": Person(own["nobody"], ("user:nobody",)),
        "tenant": Person(
            own["tenant"],
            ("user:tenant",),
            ("allow user:ten* all topic:shop.*", "allow user:tenant read,write group:shop.*"),
        ),
        "describer": Person(own["describer"], ("user:describer",), ("allow user:describer describe topic:*",)),
        "denied by a pattern": Person(
            own["refused"],
            ("user:refused",),
            (
                "allow user:refused all topic:*", "allow user:refused all group:*", "allow user:refused all cluster:*",
                "deny user:ref* write,delete topic:shop*",
            ),
        ),
        "service account": Person(
            scene.accounts.token(sub=account),
            ("k8s:shop:orders", "group:k8s:shop"),
            ("allow group:k8s:shop read topic:shop.orders", "allow k8s:shop:* read group:shop.readers"),
        ),
        "group of an issuer": Person(
            scene.corp.token(sub="eve", groups=["security"]),
            ("corp:eve", "group:corp:security"),
            ("allow group:corp:security all security:*",),
        ),
        "superuser": Person(scene.corp.token(sub="root", groups=["platform"]), ("corp:root", "group:corp:platform")),
    }  # fmt: skip


async def single_rights(secured: Secured) -> dict[str, Person]:
    """Return one caller for each right: one operation on the resources of one kind in `path_of`."""
    found = {}
    for kind in Kind:
        for operation in Operation:
            principal = f"user:only-{operation}-{kind}"
            token = (await secured.token(principal))["token"]
            rule = f"allow {principal} {operation} {resource_of(kind)}"
            found[f"{operation} {kind}"] = Person(token, (principal,), (rule,))
    return found


async def store_rules(secured: Secured, everyone: dict[str, Person]) -> list[Acl]:
    """Create the ACLs of all callers, and return them."""
    acls = [acl_of(rule) for person in everyone.values() for rule in person.rules]
    for acl in acls:
        resource = f"{acl.kind}:{acl.pattern}"
        await secured.acl(acl.principal, ",".join(acl.operations), resource, acl.effect)
    return acls


def acl_of(text: str) -> Acl:
    """Parse the text of an ACL."""
    effect, principal, operations, resource = text.split()
    kind, _, pattern = resource.partition(":")
    return Acl(
        effect=Effect(effect),
        principal=principal,
        operations=frozenset(operations.split(",")),
        kind=Kind(kind),
        pattern=pattern,
    )


def expected(route: Route, person: Person, acls: list[Acl], names: Mapping[str, str]) -> str:
    """Return the outcome that follows from the route table and the rules, for a call with these names in the path."""
    if not person.names:
        return "unauthenticated"
    if route.access.audience is Audience.PUBLIC:
        return "admitted"
    caller = Caller(principal=person.names[0], groups=person.names[1:])
    if caller.is_anonymous:
        return "unauthenticated"
    for need in route.access.gate:
        name = "*" if need.kind in SINGLE_KINDS else names[need.kind]
        if not naive(acls, caller, SUPERUSERS, need.operation, need.kind, name):
            return "forbidden"
    return "admitted"


def without_name(answer: Answer) -> tuple[int, bytes, frozenset[tuple[str, str]]]:
    """Return an answer without its date, and with the names of `HIDDEN` in place of the names of `UNKNOWN`."""
    body = answer.body
    for kind, name in UNKNOWN.items():
        body = body.replace(name.encode(), HIDDEN[kind].encode())
    return answer.status, body, frozenset(each for each in answer.headers.items() if each[0] != "date")


async def wrong_outcomes(
    scene: Scene, everyone: dict[str, Person], acls: list[Acl], brokers: int
) -> list[tuple[str, str, str, object]]:
    """Make every call as every caller; return caller, route and expected outcome of the calls with another outcome.

    `brokers`: number of brokers to which each call is sent. With 1, one call in three reaches the leader of the topic.
    """
    wrong: list[tuple[str, str, str, object]] = []
    for name, person in everyone.items():
        await scene.restore()
        for number, route in enumerate(ROUTES_BY_ORDER):
            for place in range(number, number + brokers):
                answer = await scene.ask(place, route, person, NAMES)
                if outcome(answer) != (wanted := expected(route, person, acls, NAMES)):
                    wrong.append((name, route.name, wanted, answer))
        wrong += [(name, *each) for each in await wrong_for_hidden_names(scene, person, acls, brokers)]
    return wrong


async def wrong_for_hidden_names(
    scene: Scene, person: Person, acls: list[Acl], brokers: int
) -> list[tuple[str, str, object]]:
    """Make every call with a hidden and an unknown name; return route and expected outcome of wrong answers.

    Refusals for a hidden and an unknown name must also be alike except for the name (rule Z7, proof V3).
    """
    wrong: list[tuple[str, str, object]] = []
    for number, route in enumerate(NAMED):
        wanted = expected(route, person, acls, HIDDEN)
        for place in range(number, number + brokers):
            answers = [await scene.ask(place, route, person, names) for names in (UNKNOWN, HIDDEN)]
            is_alike = wanted not in REFUSALS or len({without_name(each) for each in answers}) == 1
            if not is_alike or {outcome(each) for each in answers} != {wanted}:
                wrong.append((route.name, wanted, answers))
    return wrong


@pytest.mark.parametrize("brokers", [1, pytest.param(3, marks=pytest.mark.scenario)])
async def test_every_caller_has_the_outcome_of_its_rules(scene: Scene, brokers: int) -> None:
    """Each route answers each kind of caller according to its rules, on the leader and on brokers that forward.

    A refusal does not show whether the named topic or group exists.
    """
    everyone = await persons(scene)
    acls = await store_rules(scene.secured[0], everyone)
    wrong = await wrong_outcomes(scene, everyone, acls, brokers)
    figures = {
        "callers": len(everyone),
        "routes": len(ROUTES_BY_ORDER),
        "routes_with_hidden_and_unknown_names": len(NAMED),
        "brokers": brokers,
        "wrong_outcomes": len(wrong),
    }
    record("every route and every caller", figures)

    assert wrong == []


@pytest.mark.parametrize("brokers", [1, pytest.param(3, marks=pytest.mark.scenario)])
async def test_a_right_admits_no_call_that_needs_another(scene: Scene, brokers: int) -> None:
    """A caller with one operation on one resource makes no call that needs another operation, kind or name."""
    everyone = await single_rights(scene.secured[0])
    acls = await store_rules(scene.secured[0], everyone)
    wrong = await wrong_outcomes(scene, everyone, acls, brokers)
    figures = {
        "rights": len(everyone),
        "routes": len(ROUTES_BY_ORDER),
        "routes_with_hidden_and_unknown_names": len(NAMED),
        "brokers": brokers,
        "wrong_outcomes": len(wrong),
    }
    record("every route and every right", figures)

    assert wrong == []


@dataclass(frozen=True)
class Revocation:
    """What the callers of a token noticed of its revocation, which the revoking broker answered after a while."""

    codes: tuple[str, ...]
    """Codes of the problems that ended waiting polls and open tails."""
    refused_seconds: float
    """Seconds until every broker had refused a new request."""
    ended_seconds: float
    """Seconds until every poll and every tail had ended."""


async def revocation(secured: list[Secured], number: int) -> Revocation:
    """Revoke the token of a caller with a waiting poll and an open tail on every broker."""
    first = secured[number % len(secured)]
    reader = await first.token(f"user:reader-{number}")
    token = reader["token"]
    tail = "/v1/topics/orders/records?from=latest"
    begun = [await each.call("GET", "/v1/whoami", token) for each in secured]
    waiting = [
        asyncio.create_task(each.call("GET", path, token))
        for each in secured
        for path in ("/v1/topics/orders/partitions/0/records?max_wait_ms=30000", tail)
    ]
    await pause(0.5)
    assert not any(task.done() for task in waiting)
    at = time.monotonic()
    revoked = await first.call("DELETE", f"/v1/tokens/{reader['token_id']}", first.admin)
    after = [await each.call("GET", "/v1/whoami", token) for each in secured]
    refused_seconds = time.monotonic() - at
    ended = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    ended_seconds = time.monotonic() - at

    assert [answer.status for answer in begun] == [200] * len(secured)
    assert revoked.json["applied_everywhere"] is True
    assert [(answer.status, answer.json["reason"]) for answer in after] == [(401, "refused")] * len(secured)
    problems = (
        answer.json if answer.status == 401 else json.loads(answer.body.splitlines()[-1])["problem"]
        for answer in ended
    )
    return Revocation(tuple(problem["code"] for problem in problems), refused_seconds, ended_seconds)


@pytest.mark.serial
async def test_a_revoked_token_ends_everywhere_within_a_second(scene: Scene) -> None:
    """A token that is revoked on one broker is refused by every broker, even in waiting polls and open tails."""
    await scene.cluster.topic("orders", partitions=1)
    await scene.secured[0].acl("user:reader-*", "read", "topic:orders")
    found = [await revocation(scene.secured, number) for number in range(REVOCATIONS)]
    slowest = max(max(each.refused_seconds, each.ended_seconds) for each in found)
    record("revoked tokens", {"revocations": len(found), "slowest_seconds": round(slowest, 3)})

    assert {each.codes for each in found} == {("unauthenticated",) * 2 * len(BROKERS)}
    assert slowest <= REVOKED_SECONDS_MAX, found
