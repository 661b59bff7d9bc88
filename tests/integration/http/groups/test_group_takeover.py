"""Groups of a coordinator that stops continue at the next coordinator, and no member leaves or joins."""

import asyncio

import msgspec

from fairlead_broker.certificates.material import Side

JSON = {"content-type": "application/json"}
SECONDS_MAX = 30


async def call(api, method: str, path: str, value: object = None):
    """Send a request with a JSON body or without a body."""
    return await api.call(method, path, None if value is None else msgspec.json.encode(value), JSON)


async def joined(three, group: str, member: str, topic: str) -> int:
    """Join a member that gets every partition; return its epoch."""
    path = f"/v1/groups/{group}/members/{member}"
    answer = await call(three.at(1), "PUT", path, {"member_epoch": 0, "topics": [topic]})
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            assert answer.status == 200, answer
            epoch = answer.json["member_epoch"]
            if answer.json["assignment"]:
                return epoch
            answer = await call(three.at(1), "PUT", path, {"member_epoch": epoch})


async def test_groups_of_a_stopped_broker_continue(three) -> None:
    """A group continues at the next coordinator with its member epochs and its assignment."""
    await three.topic("flights", 2)
    epoch = await joined(three, "readers", "m-1", "flights")
    path = "/v1/groups/readers"
    before = (await call(three.at(1), "GET", path)).json
    entry = {"topic": "flights", "partition": 0, "offset": 0}
    commit = {"member_id": "m-1", "member_epoch": epoch, "offsets": [entry]}
    await call(three.at(1), "PUT", f"{path}/offsets", commit)
    await three.brokers[before["coordinator"] - 1].stop()
    left = [three.at(broker) for broker in (1, 2, 3) if broker != before["coordinator"]]
    async with asyncio.timeout(SECONDS_MAX):
        while (
            heard := await call(left[0], "PUT", f"{path}/members/m-1", {"member_epoch": epoch})
        ).status != 200:
            assert heard.code in {"coordination_unavailable", "not_coordinator", "shutting_down"}
            assert heard.json["retryable"]
    committed = await call(left[1], "PUT", f"{path}/offsets", commit)
    after = [(await call(api, "GET", path)).json for api in left]

    assert heard.json["member_epoch"] == epoch
    assert committed.status == 200, committed
    assert after[0] == after[1]
    assert after[0]["coordinator"] != before["coordinator"]
    assert {**after[0], "coordinator": None} == {**before, "coordinator": None}
    assert (await call(left[0], "GET", f"{path}/offsets")).json["offsets"][0]["offset"] == 0


async def test_a_coordinator_that_cannot_be_reached(three) -> None:
    """A request to an unreachable coordinator is refused as not executed, so that it can be repeated."""
    await three.topic("flights", 1)
    epoch = await joined(three, "readers", "m-1", "flights")
    coordinator = (await call(three.at(1), "GET", "/v1/groups/readers")).json["coordinator"]
    await three.brokers[coordinator - 1].listeners.stop_side(Side.PEER, 3)
    beat = {"member_epoch": epoch}
    other = await call(three.at(coordinator % 3 + 1), "PUT", "/v1/groups/readers/members/m-1", beat)
    itself = await call(three.at(coordinator), "PUT", "/v1/groups/readers/members/m-1", beat)

    assert (other.status, other.code) == (503, "coordination_unavailable")
    assert (other.json["side_effect"], other.json["retryable"]) == ("none", True)
    assert itself.status == 200, itself
