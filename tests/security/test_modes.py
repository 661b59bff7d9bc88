"""Modes, tokens and ACLs of running brokers: when changes apply, and refusals (rules A3, A21)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from broker_kit import Answer, Calls, sequenced
from cluster_kit import Cluster
from fairlead_api.bodies.frames import encode_frame, iterate_frames
from fairlead_api.bodies.media_types import FRAMES
from fairlead_api.identifiers import TimestampUs
from fairlead_api.token_text import TokenText
from fairlead_broker.controlling import security
from fairlead_broker.coordination import bootstrap
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.security_records import TokenRecord
from fairlead_broker.registry.store_writes import Delete, Put
from security_kit import Secured

QUOTA = {"each": {"requests_per_second": 1000}}


async def test_a_caller_cannot_lock_itself_out(tmp_path: Path) -> None:
    """A change from open to enforce needs a caller that may undo it; a reset to open takes effect at once (rule Z2)."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, superusers="user:root")
        address = cluster.brokers[1].addresses.data
        assert address is not None
        async with Calls(address) as calls:
            open_ = Secured(cluster, calls, "")
            made = await calls.post("/v1/tokens", {"principal": "user:ann"})
            ann, root = (
                made.json["token"],
                (await calls.post("/v1/tokens", {"principal": "user:root"})).json["token"],
            )
            enforce = {"config": {"security.mode": "enforce"}}
            refused = [
                await open_.call("PATCH", "/v1/cluster/config", token, enforce)
                for token in (None, ann, "flt_x")
            ]
            observed = await open_.call(
                "PATCH", "/v1/cluster/config", None, {"config": {"security.mode": "observe"}}
            )
            await open_.call("GET", "/v1/topics/shop.orders", ann)
            status = await open_.call("GET", "/v1/security", ann)
            set_ = await open_.call("PATCH", "/v1/cluster/config", root, enforce)
            held = await open_.call("GET", "/v1/cluster", ann)
            back = await open_.call("PATCH", "/v1/cluster/config", root, {"config": {"security.mode": None}})
            free = await open_.call("GET", "/v1/cluster", None)

            assert [answer.code for answer in refused] == ["would_lock_out"] * 3
            assert (observed.status, set_.status, held.code, back.status, free.status) == (
                200, 200, "forbidden", 200, 200,
            )  # fmt: skip
            denied = {(d["principal"], d["operation"], d["resource"]) for d in status.json["would_be_denied"]}
            assert ("user:ann", "describe", "topic:shop.orders") in denied
    finally:
        await cluster.close()


async def test_rights_on_cluster_and_on_security_are_separate(secured: Secured) -> None:
    """A caller with every right on `cluster` can grant nothing; one with rights on `security` can grant all (rule Z16).

    The second caller has no right on `cluster` until it takes the right.
    """
    runner, keeper = [(await secured.token(f"user:{name}"))["token"] for name in ("runner", "keeper")]
    await secured.acl("user:runner", "all", "cluster:*")
    await secured.acl("user:keeper", "all", "security:*")
    ann = {"principal": "user:ann", "operations": ["read"], "kind": "topic", "pattern": "*"}
    calls = (
        ("POST", "/v1/tokens", {"principal": "user:admin"}),
        ("POST", "/v1/acls", ann),
        ("PUT", "/v1/quotas/user%3Aann", QUOTA),
    )
    keys = {
        "security.mode": "open",
        "tokens.valid.after": "2026-01-01T00:00:00Z",
        "audit.topic.enable": "true",
    }
    patches = [{"config": {name: text}} for name, text in keys.items()]
    plain = {"config": {"auto.create.topics.enable": "true"}}

    async def patched(token: str, body: dict[str, object]) -> Answer:
        return await secured.call("PATCH", "/v1/cluster/config", token, body)

    refused = [await secured.call(method, path, runner, body) for method, path, body in calls]
    refused += [await patched(runner, body) for body in [*patches, {"config": None}]]
    allowed = await patched(runner, plain)
    granted = [await secured.call(method, path, keeper, body) for method, path, body in calls]
    closed = [await patched(keeper, body) for body in (*patches, plain)]
    who = await secured.call("GET", "/v1/whoami", granted[0].json["token"])

    assert {(each.code, each.json["resource"]) for each in refused} == {("forbidden", "security:*")}
    assert allowed.status == 200
    assert [each.status for each in granted] == [201, 201, 200]
    assert {(each.code, each.json["resource"]) for each in closed} == {("forbidden", "cluster:*")}
    assert (who.json["principal"], who.json["superuser"]) == ("user:admin", True)


async def test_a_mode_waits_for_its_feature_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below level 2, no token, ACL or stricter mode is stored, because older brokers ignore them (proof V19)."""
    monkeypatch.setattr(bootstrap, "FEATURE_LEVEL", 1)
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        monkeypatch.undo()
        address = cluster.brokers[1].addresses.data
        assert address is not None
        async with Calls(address) as calls:
            scene = Secured(cluster, calls, "")
            acl = {"principal": "user:ann", "operations": ["read"], "kind": "topic", "pattern": "*"}
            answers = [
                await calls.post("/v1/tokens", {"principal": "user:ann"}),
                await calls.post("/v1/acls", acl),
                await scene.call(
                    "PATCH", "/v1/cluster/config", None, {"config": {"security.mode": "observe"}}
                ),
            ]
            raised = await scene.call("PATCH", "/v1/cluster/config", None, {"config": {"feature.level": 2}})
            after = await calls.post("/v1/tokens", {"principal": "user:ann"})

        assert [answer.code for answer in answers] == ["not_possible_now"] * 3
        assert (raised.status, after.status) == (200, 201)
    finally:
        await cluster.close()


async def test_a_revoked_token_ends_a_waiting_fetch(secured: Secured) -> None:
    """A long poll whose token is revoked while it waits gets no record that is written afterwards (rule Z10)."""
    made = await secured.call("POST", "/v1/topics", secured.admin, {"name": "orders", "partitions": 1})
    reader = await secured.token("user:reader")
    await secured.acl("user:reader", "read", "topic:orders")
    path = "/v1/topics/orders/partitions/0/records"
    waiting = asyncio.create_task(secured.call("GET", f"{path}?max_wait_ms=20000", reader["token"]))
    fetching = secured.cluster.broker(1).fetching
    while not fetching.waiting:
        await secured.call("GET", "/v1/versions")
    await secured.call("DELETE", f"/v1/tokens/{reader['token_id']}", secured.admin)
    written = await secured.call("POST", path, secured.admin, {"records": [{"value": "secret"}]})
    answer = await waiting

    assert (made.status, written.status) == (201, 200), written
    assert (answer.status, answer.json["reason"]) == (401, "refused")


async def test_items_of_a_request_get_their_own_problems(secured: Secured) -> None:
    """Produce and fetch of several topics refuse exactly the items without a right, and ids reveal nothing (Z7)."""
    ids = {}
    for name in ("free", "read-only", "hidden"):
        answer = await secured.call("POST", "/v1/topics", secured.admin, {"name": name, "partitions": 1})
        ids[name] = answer.json["topic_id"]
    ids["unknown"] = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
    token = (await secured.token("user:ann"))["token"]
    await secured.acl("user:ann", "read,write", "topic:free")
    await secured.acl("user:ann", "read", "topic:read-only")
    body = b"".join(
        bytes(part)
        for topic_id in ids.values()
        for part in encode_frame({"topic_id": topic_id, "partition": 0}, [sequenced(0, [b"x"])])
    )
    produced = await secured.call("POST", "/v1/produce", token, body, content_type=FRAMES)
    partitions = [{"topic_id": topic_id, "partition": 0, "offset": 0} for topic_id in ids.values()]
    fetched = await secured.call(
        "POST", "/v1/fetch", token, {"partitions": partitions, "max_wait_ms": 10_000}
    )
    frames = [msgspec.json.decode(frame.meta) for frame in iterate_frames(fetched.body)]

    assert _codes(produced.json["results"]) == [None, "forbidden", "topic_not_found", "topic_not_found"]
    assert _codes(frames) == [None, None, "topic_not_found", "topic_not_found"]


def _codes(items: list[dict[str, dict[str, str]]]) -> list[str | None]:
    return [item["problem"]["code"] if "problem" in item else None for item in items]


async def test_a_forwarding_broker_lends_no_rights(tmp_path: Path) -> None:
    """In a cluster of three brokers, every broker answers according to the rights of the caller."""
    cluster = await Cluster.open(tmp_path)
    file = tmp_path / "admin.token"
    try:
        await cluster.start(1, 2, 3, security="enforce", admin_token_file=file)
        admin = file.read_text().strip()
        clients = [Calls(str(each.addresses.data)) for each in cluster.brokers.values()]
        scenes = [Secured(cluster, calls, admin) for calls in clients]
        try:
            await cluster.topic("orders", partitions=1)
            first = scenes[0]
            writer, stranger = [await first.token(f"user:{name}") for name in ("writer", "stranger")]
            await first.acl("user:writer", "write", "topic:orders")
            path, record = "/v1/topics/orders/partitions/0/records", {"records": [{"value": "x"}]}
            allowed = [await each.call("POST", path, writer["token"], record) for each in scenes]
            refused = [await each.call("POST", path, stranger["token"], record) for each in scenes]
            read = [await each.call("GET", path, writer["token"]) for each in scenes]
            created = [
                await each.call("POST", "/v1/topics", writer["token"], {"name": f"t{number}"})
                for number, each in enumerate(scenes)
            ]

            assert writer["applied_everywhere"] is True
            assert [answer.status for answer in allowed] == [200] * 3
            assert [answer.code for answer in (*refused, *read, *created)] == ["forbidden"] * 9
        finally:
            for calls in clients:
                await calls.__aexit__()
    finally:
        await cluster.close()


async def test_an_unreadable_acl_closes_the_broker(secured: Secured) -> None:
    """While an ACL cannot be read, only superusers are served and the broker is not ready (rule Z11)."""
    entry = secured.cluster.broker(1).entry
    key = entry.keys.acl("0" * 16)
    token = (await secured.token("user:ann"))["token"]
    await secured.acl("user:ann", "describe", "cluster:*")

    async def answers() -> list[int]:
        return [(await secured.call("GET", "/v1/cluster", each)).status for each in (token, secured.admin)]

    before = await answers(), secured.cluster.broker(1).ready
    await entry.mirror.wait_for((await entry.coordination.transact((), (Put(key, b"?"),))).revision)
    during = await answers(), secured.cluster.broker(1).ready
    refused = await secured.call("GET", "/v1/cluster", token)
    await entry.mirror.wait_for((await entry.coordination.transact((), (Delete(key),))).revision)

    assert before == ([200, 200], True)
    assert during == ([503, 200], False)
    assert refused.code == "coordination_unavailable"
    assert (await answers(), secured.cluster.broker(1).ready) == before


async def test_a_member_belongs_to_its_principal(secured: Secured) -> None:
    """Another principal with the same rights cannot act for a member, and a superuser can remove it (rule Z13)."""
    tokens = [(await secured.token(f"user:{name}"))["token"] for name in ("ann", "bob")]
    await secured.acl("user:*", "read", "group:readers")
    await secured.acl("user:*", "read", "topic:orders")
    path, join = "/v1/groups/readers/members/m", {"member_epoch": 0, "topics": ["orders"], "owned": []}
    ann, bob = [await secured.call("PUT", path, token, join) for token in tokens]
    left = [await secured.call("DELETE", path, token) for token in (tokens[1], secured.admin)]

    assert (ann.status, bob.code) == (200, "forbidden")
    assert (left[0].code, left[1].status) == ("forbidden", 204)


async def test_the_first_broker_closes_the_cluster(tmp_path: Path) -> None:
    """A broker that is started as `open` enforces ACLs if an enforcing broker created its cluster (rule Z1)."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, security="enforce", superusers="user:ann")
        await cluster.start(2)

        assert [cluster.broker(number).security.mode for number in (1, 2)] == ["enforce"] * 2
    finally:
        await cluster.close()


async def test_a_flood_of_bad_tokens_does_not_affect_known_callers(secured: Secured) -> None:
    """After a burst of bad tokens, no further ones are verified; a verified token works, even after an ACL change."""
    await secured.call("GET", "/v1/whoami", secured.admin)
    bad: list[Answer] = []
    # A broker on a busy machine may verify eighty tokens before the next burst.
    while len(bad) < 2000 and all(answer.status != 429 for answer in bad):
        wrong = [TokenText("0" * 12, f"{number:043}").text for number in range(len(bad), len(bad) + 80)]
        bad += await asyncio.gather(*(secured.call("GET", "/v1/whoami", token) for token in wrong))
    await secured.acl("user:ann", "read", "topic:orders")
    known = await secured.call("GET", "/v1/whoami", secured.admin)
    limited = [answer for answer in bad if answer.status == 429]

    assert {answer.code for answer in bad} == {"unauthenticated", "throttled"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in limited)
    assert known.json["principal"] == "user:admin"


async def test_records_of_an_owner_are_kept_from_other_callers(secured: Secured) -> None:
    """Tokens and ACLs are listed with their owner, and other programs remove them only with `force` (rule Z12)."""
    acl = {
        "principal": "user:ann",
        "operations": ["read"],
        "kind": "topic",
        "pattern": "a",
        "owner": "shop/User/1",
    }
    token = {"principal": "user:ann", "owner": "shop/User/1"}
    made = [
        await secured.call("POST", "/v1/acls", secured.admin, acl),
        await secured.call("POST", "/v1/tokens", secured.admin, token),
    ]
    paths = [f"/v1/acls/{made[0].json['acl_id']}", f"/v1/tokens/{made[1].json['token_id']}"]
    listed = [await secured.call("GET", path, secured.admin) for path in ("/v1/acls", "/v1/tokens")]
    refused = [await secured.call("DELETE", path, secured.admin) for path in paths]
    removed = [await secured.call("DELETE", f"{path}?force=true", secured.admin) for path in paths]

    assert ["shop/User/1" in [each["owner"] for each in answer.json["items"]] for answer in listed] == [
        True,
        True,
    ]
    assert [answer.code for answer in refused] == ["conflict", "conflict"]
    assert [answer.status for answer in removed] == [200, 200]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("kind=group", ["group:shop.*"]),
        ("kind=topic&name=shop.orders", ["topic:shop.*"]),
        ("name=shop.orders", ["group:shop.*", "topic:shop.*"]),
        ("name=orders&principal=user:bob", ["topic:orders"]),
        ("name=orders&principal=user:ann", []),
        ("kind=table", "malformed_request"),
    ],
)
async def test_acls_are_listed_by_kind_and_name(
    secured: Secured, query: str, expected: list[str] | str
) -> None:
    """A filtered list contains only the ACLs on one kind of resource whose pattern matches the given name."""
    await secured.acl("user:ann", "read", "topic:shop.*")
    await secured.acl("user:ann", "read", "group:shop.*")
    await secured.acl("user:bob", "read", "topic:orders")
    answer = await secured.call("GET", f"/v1/acls?{query}", secured.admin)
    listed = sorted(f"{each['kind']}:{each['pattern']}" for each in answer.json.get("items", ()))

    assert (listed if answer.status == 200 else answer.code) == expected


async def test_tokens_acls_and_quotas_are_limited_in_number(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the maximum, a further token, ACL or quota is refused; an equal ACL is not a further one (A12, Z4)."""
    metadata = secured.cluster.broker(1).metadata
    acl = {"principal": "user:ann", "operations": ["read"], "kind": "topic", "pattern": "a"}
    calls = (
        ("POST", "/v1/tokens", {"principal": "user:ann"}, "/v1/tokens", {"principal": "user:bob"}),
        ("POST", "/v1/acls", acl, "/v1/acls", {**acl, "pattern": "b"}),
        ("PUT", "/v1/quotas/user%3Aann", QUOTA, "/v1/quotas/user%3Abob", QUOTA),
    )
    made = [await secured.call(method, path, secured.admin, body) for method, path, body, *_ in calls]
    monkeypatch.setattr(security, "TOKENS_MAX", len(metadata.tokens))
    monkeypatch.setattr(security, "ACLS_MAX", len(metadata.acls))
    monkeypatch.setattr(security, "QUOTAS_MAX", len(metadata.quotas))
    further = [await secured.call(method, path, secured.admin, body) for method, *_, path, body in calls]
    equal = await secured.call("POST", "/v1/acls", secured.admin, acl)

    assert [each.status for each in made] == [201, 201, 200]
    assert [(each.status, each.code) for each in further] == [(409, "conflict")] * 3
    assert equal.status == 200


async def test_a_repeated_wrong_token_does_not_affect_new_callers(secured: Secured) -> None:
    """A refused token that is repeated uses no budget of its address, and is verified again after a change (rule A5).

    Another caller at the same address that sends its token for the first time is admitted.
    """
    new = (await secured.token("user:new"))["token"]
    wrong = TokenText("0" * 12, "s" * 43).text
    answers = [await secured.call("GET", "/v1/whoami", wrong) for _ in range(80)]
    first = await secured.call("GET", "/v1/whoami", new)
    text = TokenText("abcdefghijkl", "S" * 43)
    before = await secured.call("GET", "/v1/whoami", text.text)
    record = TokenRecord(
        principal="user:late",
        secret_sha256=text.secret_sha256,
        created_us=TimestampUs(1),
        created_by="user:admin",
    )
    entry = secured.cluster.broker(1).entry
    put = Put(entry.keys.token(text.token_id), encode(record))
    await entry.mirror.wait_for((await entry.coordination.transact((), (put,))).revision)
    after = await secured.call("GET", "/v1/whoami", text.text)

    assert {(answer.status, answer.json["reason"]) for answer in answers} == {(401, "refused")}
    assert first.json["principal"] == "user:new"
    assert (before.status, after.json["principal"]) == (401, "user:late")
