"""Access to names in bodies and answers is decided by every endpoint whose route requires it (rule Z15, proof V2)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from broker_kit import Answer, sequenced
from fairlead_api.access_needs import NameSource, Operation
from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.bodies.frames import encode_frame, iterate_frames
from fairlead_api.bodies.media_types import FRAMES
from fairlead_api.routes import ROUTES
from security_kit import REFUSALS, Secured, path_of
from waiting import LOOK_SECONDS, SECONDS_MAX, pause

UNKNOWN: Final = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
OFFSET: Final = {"topic": "hidden", "partition": 0, "offset": 0}
RECORD: Final = {"records": [{"value": "x"}]}
RIGHTS: Final = (
    ("all", "cluster:*"),
    ("all", "group:g*"),
    ("write", "topic:new"),
    ("describe", "topic:shown"),
)
"""Rights of the caller of `scene`."""
BY_ID: Final = {
    "produce": ("topic_not_found", "write", "topic:hidden"),
    "fetch": ("topic_not_found", "read", "topic:hidden"),
    "commit_transaction": ("transaction_not_found", "write", "producer:hidden"),
    "commit_transactions": ("transaction_not_found", "write", "producer:hidden"),
    "abort_transaction": ("transaction_not_found", "write", "producer:hidden"),
    "delete_transaction": ("transaction_not_found", "delete", "producer:hidden"),
}
"""Code and missing right of requests with the id of a hidden topic or transaction, which are answered as for an unknown
id."""
REFUSED: Final = REFUSALS | {"topic_not_found"}
"""Codes of answers to calls without the right on a name in the body."""


def frames(topic_id: str, transaction: str | None = None) -> bytes:
    """Return a produce body with one batch for a topic, of a transaction if one is given."""
    meta = {"topic_id": topic_id, "partition": 0}
    batch = sequenced(0, [b"x"])
    if transaction is not None:
        stamp = ProducerStamp(*map(int, transaction.split(".")), 0, is_transactional=True)
        batch = encode(record_batch([b"x"], default_timestamp_us=0), producer=stamp).to_bytes()
    return b"".join(bytes(part) for part in encode_frame(meta, [batch]))


def requests(hidden_id: str, transaction: str) -> dict[str, tuple[str, str, Any]]:
    """Return a call for each route that needs rights on names in the body, with a name that the caller may not use."""
    fetch = {"partitions": [{"topic_id": hidden_id, "partition": 0, "offset": 0}]}
    subscribed = {"member_epoch": 0, "topics": ["hidden"], "session_timeout_ms": 45_000}
    check = {"principal": "user:bob", "operation": "read", "kind": "topic", "name": "hidden"}
    mode = {"config": {"security.mode": "open"}}
    source = {"bootstrap": ["http://east.example:9520"]}
    link = {"name": "east", "source": source, "topics": {"include": ["*"]}, "acls": True}
    return {
        "create_topic": ("POST", "/v1/topics", {"name": "hidden2"}),
        "produce": ("POST", "/v1/produce", frames(hidden_id)),
        "produce_topic": ("POST", "/v1/topics/new/records", RECORD),
        "produce_partition": ("POST", "/v1/topics/new/partitions/0/records", RECORD),
        "fetch": ("POST", "/v1/fetch", fetch),
        "lookup_offsets": (
            "POST",
            "/v1/offsets:lookup",
            {"partitions": [{"topic": "hidden", "partition": 0, "timestamp": "latest"}]},
        ),
        "allocate_producer": ("POST", "/v1/producers", {"name": "hidden"}),
        "begin_transaction": ("POST", "/v1/transactions", {"name": "hidden"}),
        "commit_transaction": ("POST", f"/v1/transactions/{transaction}:commit", {}),
        "commit_transactions": (
            "POST",
            "/v1/transactions:commit",
            {"transactions": [{"transaction": transaction}]},
        ),
        "abort_transaction": ("POST", f"/v1/transactions/{transaction}:abort", {}),
        "delete_transaction": ("DELETE", f"/v1/transactions/{transaction}", None),
        "check_acls": ("POST", "/v1/acls:check", check),
        "alter_cluster_config": ("PATCH", "/v1/cluster/config", mode),
        "create_link": ("POST", "/v1/links", link),
        "alter_link": ("PATCH", "/v1/links/east", {"acls": True}),
        "elect_leader": ("POST", "/v1/topics/shown/partitions/0:elect", {"kind": "unclean"}),
        "heartbeat": ("PUT", "/v1/groups/g2/members/m", subscribed),
        "commit_offsets": ("PUT", "/v1/groups/g/offsets", {"offsets": [OFFSET]}),
        "reset_offsets": ("POST", "/v1/groups/g/offsets:reset", {"to": "earliest"}),
    }


def problems(answer: Answer) -> list[dict[str, Any]]:
    """Return the problems in an answer: the answer's own problem, or the problems of its items."""
    if answer.headers.get("content-type") == FRAMES:
        return _problems_in([msgspec.json.decode(frame.meta) for frame in iterate_frames(answer.body)])
    value = answer.json if answer.body else None
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    return _problems_in({"problem": value} if is_problem else value)


def _problems_in(value: object) -> list[dict[str, Any]]:
    """Return all problems within a JSON value."""
    if isinstance(value, list):
        return [problem for each in value for problem in _problems_in(each)]
    if not isinstance(value, dict):
        return []
    if value.get("problem"):
        return [value["problem"]]
    return [problem for each in value.values() for problem in _problems_in(each)]


def codes(answer: Answer) -> list[str]:
    """Return the codes of the problems in an answer."""
    return [problem["code"] for problem in problems(answer)]


async def scene(secured: Secured) -> tuple[str, str, str]:
    """Create a hidden and a shown topic, offsets of the hidden topic, a hidden transaction, and a caller.

    Returns the caller's token, the id of the hidden topic, and the transaction.
    """
    create = {"config": {"auto.create.topics.enable": True}}
    await secured.call("PATCH", "/v1/cluster/config", secured.admin, create)
    made = [
        await secured.call("POST", "/v1/topics", secured.admin, {"name": name, "partitions": 1})
        for name in ("hidden", "shown")
    ]
    committed = await secured.call("PUT", "/v1/groups/g/offsets", secured.admin, {"offsets": [OFFSET]})
    begun = await secured.call("POST", "/v1/transactions", secured.admin, {"name": "hidden"})
    token = (await secured.token("user:ann"))["token"]
    for operation, resource in RIGHTS:
        await secured.acl("user:ann*", operation, resource)

    assert [answer.status for answer in (*made, begun, committed)] == [201, 201, 201, 200], committed
    return token, made[0].json["topic_id"], begun.json["transaction"]


async def send(secured: Secured, token: str, call: tuple[str, str, Any]) -> Answer:
    """Send a call of `requests`."""
    method, path, body = call
    headers = {"content_type": FRAMES} if isinstance(body, bytes) else {}
    return await secured.call(method, path, token, body, **headers)


async def test_a_name_in_a_body_is_decided(secured: Secured) -> None:
    """A caller with all rights but one on a name in the body is refused, for each route that needs this right."""
    token, hidden_id, transaction = await scene(secured)
    calls = requests(hidden_id, transaction)
    needed = {r.name for r in ROUTES if any(n.source is NameSource.BODY for n in r.access.needs)}

    assert calls.keys() == needed
    for name, call in calls.items():
        answer = await send(secured, token, call)
        expected = BY_ID[name][0] if name in BY_ID else "forbidden"

        assert codes(answer) == [expected], (name, answer)
    present = await secured.call("GET", "/v1/topics", secured.admin)
    assert [topic["name"] for topic in present.json["items"]] == ["hidden", "shown"]


async def test_another_right_on_a_name_in_a_body_is_not_enough(secured: Secured) -> None:
    """A caller with every operation but the needed operation on a name in the body is refused, with the needed right.

    Every right includes `describe`, so calls that need `describe` are not part of the test.
    """
    token, hidden_id, transaction = await scene(secured)
    compared = []
    for name, call in requests(hidden_id, transaction).items():
        refused = await send(secured, token, call)
        [problem] = problems(refused)
        _, operation, resource = BY_ID.get(name) or ("", problem["operation"], problem["resource"])
        if operation == "describe":
            continue
        other = (await secured.token(f"user:ann-{name}"))["token"]
        others = [each for each in Operation if each != operation]
        await secured.acl(f"user:ann-{name}", ",".join(others), resource)
        [again] = problems(await send(secured, other, call))
        compared.append(name)

        assert (again["code"], again["operation"], again["resource"]) == ("forbidden", operation, resource), (
            name
        )
    assert len(compared) > len(BY_ID)


async def answers_in(mode: str, secured: Secured, token: str, calls: dict[str, Any]) -> dict[str, Answer]:
    """Return the answers to calls in a mode, which is set before each call, because one of the calls changes it."""
    found = {}
    for name, call in calls.items():
        assert await secured.set_mode(secured.admin, mode) == 200
        found[name] = await send(secured, token, call)
    return found


async def test_observe_lists_what_enforce_refuses_for_names_in_bodies(open_: Secured) -> None:
    """Calls that `enforce` refuses for a name in the body are executed in `observe` mode, which lists missing rights.

    After the listed rights have been granted, `enforce` refuses none of the calls (rule Z3, proof V16).
    """
    token, hidden_id, transaction = await scene(open_)
    calls = requests(hidden_id, transaction)
    held = await answers_in("enforce", open_, token, calls)
    refused = {("user:ann", operation, resource) for _, operation, resource in BY_ID.values()}
    refused |= {
        ("user:ann", problem["operation"], problem["resource"])
        for answer in held.values()
        for problem in problems(answer)
        if problem["code"] == "forbidden"
    }
    before = await open_.denied()
    observed = await answers_in("observe", open_, token, calls)
    listed = await open_.denied()
    for principal, operation, resource in listed:
        await open_.acl(principal, operation, resource)
    granted = await answers_in("enforce", open_, token, calls)

    hidden = {code for code, _, _ in BY_ID.values()}
    assert {code for answer in held.values() for code in codes(answer)} == {"forbidden", *hidden}
    assert all(codes(answer) for answer in held.values())
    assert before == set()
    assert listed == refused
    for answers in (observed, granted):
        assert REFUSED.isdisjoint(code for answer in answers.values() for code in codes(answer)), answers


async def test_hidden_and_missing_transactions_are_answered_alike(secured: Secured) -> None:
    """A transaction of a producer that the caller may not describe looks missing, by its id and by the producer's name.

    Otherwise, a caller that tries ids would learn the names of producers (rule Z7).
    """
    token, _, transaction = await scene(secured)
    producer_id, _, epoch = transaction.partition(".")
    missing = f"{int(producer_id) ^ 1}.{epoch}"
    routes = [each for each in ROUTES if "{transaction}" in each.path or each.name == "commit_transactions"]

    for known, unknown in ((transaction, missing), ("hidden", "absent")):
        for route in routes:
            answers = []
            for name in (unknown, known):
                path = path_of(route, transaction=name)
                body = {"transactions": [{"transaction": name}]} if path.endswith("s:commit") else None
                answer = await secured.call(route.method, path, token, body)
                answers.append((answer.status, answer.body.replace(unknown.encode(), known.encode())))

            assert answers[0] == answers[1], route.name
            assert answers[0][0] in (400, 404)
    standing = await secured.call("GET", f"/v1/transactions/{transaction}", secured.admin)
    assert standing.json["state"] == "open"


async def test_offsets_of_a_commit_need_rights_on_group_and_topics(secured: Secured) -> None:
    """A caller commits its own transaction only with offsets of a group and of topics that the caller may read."""
    token, _, _ = await scene(secured)
    begun = (await secured.call("POST", "/v1/transactions", token, {})).json["transaction"]
    path = f"/v1/transactions/{begun}:commit"
    answers = [
        await secured.call("POST", path, token, {"offsets": {"group": group, "offsets": [OFFSET]}})
        for group in ("g", "other")
    ]
    empty = await secured.call("POST", path, token, {})

    assert [answer.code for answer in answers] == ["forbidden", "forbidden"]
    assert empty.status == 200


async def test_a_commit_with_batches_needs_rights_on_the_producer(secured: Secured) -> None:
    """A caller stores batches in a topic of its own, but does not commit the transaction of a hidden producer."""
    token, topic_id, transaction = await scene(secured)
    await secured.acl("user:ann", "write", "topic:hidden")
    headers = {"content_type": FRAMES, "fairlead_commit_transaction": transaction}
    answers = [
        await secured.call("POST", "/v1/produce", caller, frames(topic_id, transaction), **headers)
        for caller in (token, secured.admin)
    ]

    assert [answer.status for answer in answers] == [207, 200]
    assert answers[0].json["commit_problem"]["code"] == "transaction_not_found"
    assert answers[1].json["committed"]["duplicate"] is False


async def test_an_answer_leaves_hidden_names_out(secured: Secured) -> None:
    """Lists and descriptions contain no topic and no group that the caller may not describe (rule Z8)."""
    token, _, transaction = await scene(secured)
    await secured.call("PUT", "/v1/groups/other/offsets", secured.admin, {"offsets": [OFFSET]})
    paths = {
        "metadata": "/v1/metadata",
        "list_topics": "/v1/topics",
        "list_reassignments": "/v1/reassignments",
        "list_replica_sizes": "/v1/replica-sizes",
        "list_groups": "/v1/groups?limit=1",
        "describe_group": "/v1/groups/g",
        "group_lag": "/v1/groups/g/lag",
        "committed_offsets": "/v1/groups/g/offsets",
        "list_transactions": "/v1/transactions",
        "describe_transaction": f"/v1/transactions/{transaction}",
    }
    needed = {r.name for r in ROUTES if any(n.source is NameSource.ANSWER for n in r.access.needs)}
    seen = {name: (await secured.call("GET", path, token)).body for name, path in paths.items()}
    full = {name: (await secured.call("GET", path, secured.admin)).body for name, path in paths.items()}

    assert paths.keys() == needed
    assert [name for name, body in seen.items() if b"hidden" in body or b"other" in body] == []
    assert [
        name
        for name in (
            "metadata",
            "list_topics",
            "list_replica_sizes",
            "group_lag",
            "committed_offsets",
            "list_transactions",
            "describe_transaction",
        )
        if b"hidden" in full[name]
    ]
    assert [b"shown" in seen[name] for name in ("metadata", "list_topics")] == [True, True]
    assert msgspec.json.decode(seen["list_groups"])["next"] is None


async def test_a_visible_transaction_leaves_hidden_topics_out(secured: Secured) -> None:
    """Answers about a transaction that the caller may describe contain no topic that the caller may not describe."""
    token, hidden_id, transaction = await scene(secured)
    await secured.acl("user:ann", "describe", "producer:hidden")
    for topic in ("hidden", "shown"):
        path = f"/v1/topics/{topic}/partitions/0/records"
        sent = await secured.call("POST", path, secured.admin, RECORD, fairlead_transaction=transaction)
        assert sent.status == 200, sent

    async def answers(caller: str) -> list[Any]:
        """Return the description of the transaction, and its entry in the list."""
        described = await secured.call("GET", f"/v1/transactions/{transaction}", caller)
        [listed] = (await secured.call("GET", "/v1/transactions", caller)).json["items"]
        return [described.json, listed]

    async with asyncio.timeout(SECONDS_MAX):
        while len((full := await answers(secured.admin))[0]["open_at"]) < 2:
            await pause(LOOK_SECONDS)
    seen = await answers(token)

    assert hidden_id not in str(seen)
    assert [[each["topic"] for each in answer["named"]] for answer in seen] == [["shown"]] * 2
    assert [{each["topic"] for each in answer["named"]} for answer in full] == [{"hidden", "shown"}] * 2
    assert [each["topic"] for each in seen[0]["open_at"]] == ["shown"]
    assert {each["topic"] for each in full[0]["open_at"]} == {"hidden", "shown"}


async def test_a_tag_of_metadata_belongs_to_a_caller_and_its_access(secured: Secured) -> None:
    """A caller gets 304 for its own ETag only, and a full answer once its access has changed (rule Z8)."""
    callers = {name: (await secured.token(f"user:{name}"))["token"] for name in ("ann", "bob")}
    await secured.call("POST", "/v1/topics", secured.admin, {"name": "shop.books"})
    given = [await secured.acl(f"user:{name}", "describe", "topic:shop.*") for name in callers]
    first = await secured.call("GET", "/v1/metadata", callers["ann"])

    async def repeat(token: str) -> Answer:
        """Ask with the ETag of the first answer."""
        return await secured.call("GET", "/v1/metadata", token, if_none_match=first.headers["etag"])

    answers = [await repeat(token) for token in (callers["ann"], callers["bob"], secured.admin)]
    await secured.call("DELETE", f"/v1/acls/{given[0]}", secured.admin)
    after = await repeat(callers["ann"])

    assert [each.status for each in answers] == [304, 200, 200]
    assert {each.headers["vary"] for each in (first, *answers, after)} == {"authorization"}
    assert [each["name"] for each in first.json["topics"]] == ["shop.books"]
    assert (after.status, after.json["topics"]) == (200, [])


async def test_a_subscription_by_pattern_needs_every_topic_of_its_prefix(secured: Secured) -> None:
    """A pattern is admitted if the caller may read all topics with its literal prefix (rule Z14).

    The assigned topics therefore reveal no hidden name.
    """
    token, _, _ = await scene(secured)
    await secured.acl("user:ann", "read", "topic:shop.*")
    answers = [
        await secured.call(
            "PUT", f"/v1/groups/g{number}/members/m", token, {"member_epoch": 0, "topic_pattern": pattern}
        )
        for number, pattern in enumerate((".*", "hid.*", r"shop\..*"))
    ]

    assert [answer.status for answer in answers] == [403, 403, 200], answers
    assert answers[0].json["resource"] == "topic:*"
