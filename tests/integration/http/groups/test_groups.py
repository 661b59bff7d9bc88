"""Consumer groups over HTTP: every broker accepts any request, and a refused request changes nothing."""

import asyncio

import msgspec
import pytest

from http_group_kit import Member, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEVER = {"fairlead-forward": "never", "content-type": "application/json"}


@pytest.mark.slow
async def test_whole_life_behind_a_balancer(scene, calls) -> None:
    """A group is joined, shared, committed, left, reset and deleted with each request sent to a different broker."""
    first, second, third = await scene.joined("m-1", "m-2", "m-3")
    assert first.partitions | second.partitions | third.partitions == {0, 1, 2}
    for member in (first, second, third):
        [partition] = member.partitions
        committed = await calls.commit(
            scene.group,
            member_id=member.id,
            member_epoch=member.epoch,
            offsets=[scene.entry(partition, 4, topic_id=scene.topic_id, metadata=member.id)],
        )
        assert committed.status == 200, committed
    described = [await calls.get(f"/v1/groups/{scene.group}") for _ in range(3)]
    lag = await calls.get(f"/v1/groups/{scene.group}/lag")

    assert described[0] == described[1] == described[2]
    assert (described[0]["state"], len(described[0]["members"])) == ("stable", 3)
    assert [
        (each["committed_offset"], each["high_watermark"], each["lag_records"]) for each in lag["lag"]
    ] == [(4, 10, 6)] * 3
    assert {each["member_id"] for each in lag["lag"]} == {"m-1", "m-2", "m-3"}
    assert lag["total_records"] == 18
    assert lag["max_seconds"] > 0

    for member in (second, third):
        assert (await calls.call("DELETE", member.path)).status == 204
    await until([first], lambda: first.partitions == {0, 1, 2})
    assert await calls.offsets(scene.group) == {(scene.topic, partition): 4 for partition in range(3)}
    assert (await calls.call("DELETE", f"/v1/groups/{scene.group}")).code == "group_not_empty"
    assert (await calls.call("DELETE", first.path)).status == 204

    path = f"/v1/groups/{scene.group}/offsets:reset"
    planned = await calls.call("POST", f"{path}?dry_run=true", {"to": "earliest"})
    assert await calls.offsets(scene.group) == {(scene.topic, partition): 4 for partition in range(3)}
    done = await calls.call("POST", path, {"to": "earliest"})
    assert planned.json == done.json
    assert [(each["before"], each["after"]) for each in done.json["offsets"]] == [(4, 0)] * 3
    assert await calls.offsets(scene.group) == {(scene.topic, partition): 0 for partition in range(3)}

    assert (await calls.call("DELETE", f"/v1/groups/{scene.group}")).status == 204
    for _ in range(3):
        assert (await calls.call("GET", f"/v1/groups/{scene.group}")).code == "group_not_found"


async def test_a_call_that_forbids_forwarding_gets_the_address(scene, calls) -> None:
    """A request with `Fairlead-Forward: never` gets 421 with the coordinator's address and adds no member."""
    [member] = await scene.joined("m-1")
    coordinator = (await calls.get(f"/v1/groups/{scene.group}"))["coordinator"]
    path = f"/v1/groups/{scene.group}/members/m-2"
    body = msgspec.json.encode({"member_epoch": 0, "topics": [scene.topic]})
    for broker in (1, 2, 3):
        if broker == coordinator:
            continue
        refused = await calls.three.at(broker).call("PUT", path, body, NEVER)
        assert (refused.status, refused.code) == (421, "not_coordinator")
        assert refused.json["address"].endswith(calls.three.brokers[coordinator - 1].addresses.data)
    heard = await calls.three.at(coordinator).call(
        "PUT", member.path, msgspec.json.encode({"member_epoch": member.epoch}), NEVER
    )

    assert heard.status == 200, heard
    assert [each["member_id"] for each in (await calls.get(f"/v1/groups/{scene.group}"))["members"]] == [
        "m-1"
    ]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session_timeout_ms": -1}, "malformed_request"),
        ({"session_timeout_ms": 2**62}, "malformed_request"),
        ({"rebalance_timeout_ms": 0}, "malformed_request"),
        ({"topic_pattern": "(unclosed"}, "invalid_pattern"),
        ({"topic_pattern": r"(a)\1"}, "invalid_pattern"),
        ({"topic_pattern": "((a{100}){100}){100}"}, "invalid_pattern"),
        ({"instance_id": "x\u0007"}, "invalid_group_name"),
        ({"assignor": "sticky"}, "malformed_request"),
        ({"colour": "red"}, "unknown_option"),
    ],
)
async def test_refused_joins(scene, calls, fields: dict, code: str) -> None:
    """A refused join has a typed problem and creates no group."""
    answer = await calls.call(
        "PUT", f"/v1/groups/{scene.group}/members/m", {"member_epoch": 0, "topics": [scene.topic], **fields}
    )

    assert answer.code == code
    assert (await calls.call("GET", f"/v1/groups/{scene.group}")).code == "group_not_found"


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/v1/groups/a%07b", None, "invalid_group_name"),
        ("GET", f"/v1/groups/{'g' * 250}", None, "invalid_group_name"),
        ("PUT", "/v1/groups/g/members/a%0Ab", {"member_epoch": 0, "topics": ["t"]}, "invalid_group_name"),
        ("PUT", "/v1/groups/nobody/members/m", {"member_epoch": 3}, "member_not_found"),
        ("DELETE", "/v1/groups/nobody/members/m", None, "member_not_found"),
        ("DELETE", "/v1/groups/g/members/m?static=maybe", None, "malformed_request"),
        ("GET", "/v1/groups/nobody", None, "group_not_found"),
        ("GET", "/v1/groups/nobody/lag", None, "group_not_found"),
        ("DELETE", "/v1/groups/nobody", None, "group_not_found"),
        ("POST", "/v1/groups/nobody/offsets:reset", {"to": "earliest"}, "group_not_found"),
        ("POST", "/v1/groups/g/offsets:reset", {"to": {"duration": "soon"}}, "malformed_request"),
        ("GET", "/v1/groups/g/offsets?topics=a/b", None, "invalid_topic_name"),
        ("GET", "/v1/groups?after=nonsense", None, "malformed_request"),
        ("PUT", "/v1/groups/g/offsets", [1], "malformed_request"),
        ("PATCH", "/v1/groups/g", {}, "method_not_allowed"),
    ],
)
async def test_refused_calls(calls, method: str, path: str, body: object, code: str) -> None:
    """A refused group request has the same problem at every broker."""
    answers = [await calls.call(method, path, body) for _ in range(3)]

    assert [answer.code for answer in answers] == [code] * 3


async def test_a_description_creates_no_group(calls) -> None:
    """A description of a missing group stores nothing, so that names cannot fill the store."""
    before = (await calls.get("/v1/groups?limit=1000"))["items"]
    for _ in range(3):
        await calls.call("GET", "/v1/groups/asked-for")
        await calls.call("GET", "/v1/groups/asked-for/offsets")
        await calls.call("GET", "/v1/groups/asked-for/lag")

    assert (await calls.get("/v1/groups?limit=1000"))["items"] == before


async def test_one_static_id_is_one_member(scene, calls) -> None:
    """A second instance with the id of a live static member is refused, and the first instance continues."""
    [first] = await scene.joined("m-1", instance_id="i-1")
    second = await calls.call(
        "PUT",
        f"/v1/groups/{scene.group}/members/m-2",
        {"member_epoch": 0, "topics": [scene.topic], "instance_id": "i-1"},
    )
    await first.settle()

    assert second.code == "instance_fenced"
    assert first.partitions == {0, 1, 2}


async def test_a_static_member_comes_back_to_its_place(scene, calls) -> None:
    """A static member that returns keeps its partitions, and the group epoch does not change."""
    [first] = await scene.joined("m-1", instance_id="i-1")
    before = await calls.get(f"/v1/groups/{scene.group}")
    assert (await calls.call("DELETE", f"{first.path}?static=true")).status == 204
    again = Member(calls, scene.group, "m-2")
    await again.join(scene.topic, instance_id="i-1")
    await until([again], lambda: again.partitions == {0, 1, 2})
    after = await calls.get(f"/v1/groups/{scene.group}")

    assert [each["member_id"] for each in after["members"]] == ["m-2"]
    assert after["epoch"] == before["epoch"]


async def test_a_storm_of_heartbeats(scene, calls) -> None:
    """Hundreds of concurrent heartbeats through all brokers are answered or refused and leave the group unchanged."""
    [member] = await scene.joined("m-1")
    before = await calls.get(f"/v1/groups/{scene.group}")
    beat = {"member_epoch": member.epoch}
    join = {"member_epoch": 0, "topics": [scene.topic]}
    paths = [member.path, f"/v1/groups/{scene.group}/members/ghost"]
    answers = await asyncio.gather(
        *(calls.call("PUT", paths[number % 2], beat) for number in range(600)),
    )
    codes = {answer.status if answer.status == 200 else answer.code for answer in answers}
    after = await calls.get(f"/v1/groups/{scene.group}")

    assert codes <= {200, "member_not_found", "overloaded"}
    assert 200 in codes
    assert after == before
    joined = await asyncio.gather(*(calls.call("PUT", member.path, join) for _ in range(100)))
    assert {answer.status for answer in joined} == {200}


async def test_groups_are_listed_by_pages(scene, calls) -> None:
    """Each group is listed once, whichever broker answers a page."""
    names = [f"{scene.group}-{letter}" for letter in "abcde"]
    for name in names:
        assert (await calls.commit(name, offsets=[scene.entry(0, 1)])).status == 200
    found: list[dict] = []
    path = "/v1/groups?limit=2"
    while path:
        listing = await calls.get(path)
        found += listing["items"]
        assert len(listing["items"]) <= 2
        path = f"/v1/groups?limit=2&after={listing['next']}" if listing["next"] else ""
    groups = [each["group"] for each in found]

    assert len(set(groups)) == len(groups)
    assert [group for group in groups if group.startswith(f"{scene.group}-")] == names


async def test_repeated_joins_leave_no_ghosts(scene, calls) -> None:
    """A join that is repeated after a lost answer adds one member and leaves the other members unchanged."""
    first, second = (Member(calls, scene.group, each) for each in ("m-1", "m-2"))
    for member in (first, second, first, second, first):
        member.epoch, member.assignment = 0, []
        await member.join(scene.topic)
    await until([first, second], lambda: len(first.partitions) + len(second.partitions) == 3)
    described = await calls.get(f"/v1/groups/{scene.group}")

    assert [each["member_id"] for each in described["members"]] == ["m-1", "m-2"]
    assert first.partitions | second.partitions == {0, 1, 2}


async def test_heartbeats_under_other_epochs(scene, calls) -> None:
    """A heartbeat with an unknown epoch is fenced, and a repeated heartbeat in the current epoch changes nothing."""
    [member] = await scene.joined("m-1")
    before = await calls.get(f"/v1/groups/{scene.group}")
    future = await calls.call("PUT", member.path, {"member_epoch": member.epoch + 1})
    repeated = Member(calls, scene.group, "m-1", member.epoch, member.assignment)
    await repeated.settle()

    assert future.code == "member_fenced"
    assert (repeated.epoch, repeated.partitions) == (member.epoch, {0, 1, 2})
    assert await calls.get(f"/v1/groups/{scene.group}") == before


async def test_a_silent_member_is_removed(scene, calls) -> None:
    """When its session expires, a silent member is removed, its partitions move, and its later commits are refused."""
    [silent] = await scene.joined("m-1", session_timeout_ms=2000)
    lively = Member(calls, scene.group, "m-2")
    await lively.join(scene.topic)
    await until([lively], lambda: lively.partitions == {0, 1, 2})
    heard = await calls.call("PUT", silent.path, {"member_epoch": silent.epoch})
    committed = await calls.commit(
        scene.group, member_id="m-1", member_epoch=silent.epoch, offsets=[scene.entry(0, 9)]
    )
    found = await calls.call("GET", f"/v1/groups/{scene.group}/offsets")

    assert heard.code == "member_not_found"
    assert committed.code == "member_not_found"
    assert found.json["offsets"] == []
