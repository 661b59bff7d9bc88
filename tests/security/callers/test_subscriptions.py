"""Rights of group members on their topics, in a join and after each change of the access rules (rules Z6, Z14)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker_kit import Answer
from cluster_kit import SECONDS_MAX
from fairlead_broker.runtime.groups import coordinated_group
from security_kit import Secured
from waiting import LOOK_SECONDS, pause

GROUP = "shop.readers"


@dataclass
class Member:
    """Member of the group, which releases revoked partitions at once."""

    secured: Secured
    token: str
    name: str = "m"
    epoch: int = 0
    assignment: list[dict[str, Any]] = field(default_factory=list)

    async def beat(self, **fields: object) -> Answer:
        """Send a heartbeat, apply its answer, and return it."""
        if self.epoch and "owned" not in fields:
            keys = ("topic_id", "partitions")
            fields["owned"] = [{key: each[key] for key in keys} for each in self.assignment]
        path = f"/v1/groups/{GROUP}/members/{self.name}"
        answer = await self.secured.call("PUT", path, self.token, {"member_epoch": self.epoch, **fields})
        if answer.status == 200:
            self.epoch = answer.json["member_epoch"]
            if answer.json["assignment"] is not None:
                self.assignment = answer.json["assignment"]
        return answer

    @property
    def topics(self) -> set[str]:
        """Assigned topics."""
        return {each["topic"] for each in self.assignment}


async def create(secured: Secured, *topics: str) -> None:
    """Create topics with two partitions."""
    for name in topics:
        body = {"name": name, "partitions": 2}
        assert (await secured.call("POST", "/v1/topics", secured.admin, body)).status == 201


async def member(secured: Secured, name: str) -> Member:
    """Return a member that has not joined, of a new principal that may use the group but read no topic."""
    token = (await secured.token(f"user:{name}"))["token"]
    await secured.acl(f"user:{name}", "read", f"group:{GROUP}")
    return Member(secured, token, name)


async def delete_acl(secured: Secured, acl_id: str) -> None:
    """Delete an ACL."""
    assert (await secured.call("DELETE", f"/v1/acls/{acl_id}", secured.admin)).status == 200


async def members(secured: Secured) -> set[str]:
    """Return the ids of the members of the group."""
    described = await secured.call("GET", f"/v1/groups/{GROUP}", secured.admin)
    return {each["member_id"] for each in described.json["members"]}


@pytest.mark.parametrize("pattern", [".*", "_.*", "__?.*", "(__)?[a-z_]*"])
async def test_a_pattern_assigns_no_internal_topic(secured: Secured, pattern: str) -> None:
    """A member that may read `topic:*` can subscribe by any pattern, and its assignment has no internal topic."""
    await create(secured, "__internal", "orders", "_orders")
    ann = await member(secured, "ann")
    await secured.acl("user:ann", "read", "topic:*")
    joined = await ann.beat(topic_pattern=pattern)
    await create(secured, "__later", "_later")
    async with asyncio.timeout(SECONDS_MAX):
        while "_later" not in ann.topics:
            assert (await ann.beat()).status == 200
            await pause(LOOK_SECONDS)

    assert joined.status == 200, joined
    assert not [name for name in ann.topics if name.startswith("__")]


async def test_an_internal_topic_needs_a_pattern_and_a_rule_for_internal_names(secured: Secured) -> None:
    """A pattern that begins with `__` needs an ACL that begins with `__`, and then assigns the internal topics."""
    await create(secured, "__internal", "orders")
    ann = await member(secured, "ann")
    await secured.acl("user:ann", "read", "topic:*")
    refused = await ann.beat(topic_pattern="__.*")
    await secured.acl("user:ann", "read", "topic:__*")
    admitted = await ann.beat(topic_pattern="__.*")

    assert (refused.status, refused.json["resource"]) == (403, "topic:__*")
    assert (admitted.status, ann.topics) == (200, {"__internal"})


async def test_no_mode_assigns_an_internal_topic_by_another_pattern(open_: Secured) -> None:
    """Even without access rules, a pattern that does not begin with `__` assigns no internal topic; a name does."""
    await create(open_, "__internal", "orders")
    every = Member(open_, open_.admin, "every")
    await every.beat(topic_pattern=".*")
    found = every.topics
    await open_.call("DELETE", f"/v1/groups/{GROUP}/members/every", open_.admin)
    named = Member(open_, open_.admin, "named")
    async with asyncio.timeout(SECONDS_MAX):
        await named.beat(topics=["__internal"])
        while named.topics != {"__internal"}:
            await named.beat()
            await pause(LOOK_SECONDS)

    assert found == {"orders"}


@pytest.mark.parametrize(
    ("subscription", "resource", "partitions"),
    [
        ({"topics": ["shop.a", "shop.b"]}, "topic:shop.a", 4),
        ({"topic_pattern": r"shop\..*"}, "topic:shop.*", 6),
    ],
)
async def test_a_member_that_may_no_longer_read_its_topics_is_removed(
    secured: Secured, subscription: dict[str, object], resource: str, partitions: int
) -> None:
    """After its ACL is deleted, a member's next heartbeat is refused, and other members get its partitions.

    The member gets the same refusal as in a join, learns no new topic, and cannot join again.
    """
    await create(secured, "shop.a", "shop.b")
    ann, bob = await member(secured, "ann"), await member(secured, "bob")
    acl_id = await secured.acl("user:ann", "read", "topic:shop.*")
    await secured.acl("user:bob", "read", "topic:shop.*")
    joined = await ann.beat(**subscription)
    async with asyncio.timeout(SECONDS_MAX):
        await bob.beat(**subscription)
        while not bob.assignment:
            assert (await ann.beat()).status == 200
            await bob.beat()
            await pause(LOOK_SECONDS)
    await delete_acl(secured, acl_id)
    await create(secured, "shop.new")
    refused, unknown = await ann.beat(), await ann.beat()
    ann.epoch = 0
    again = await ann.beat(**subscription)
    async with asyncio.timeout(SECONDS_MAX):
        while sum(len(each["partitions"]) for each in bob.assignment) < partitions:
            assert (await bob.beat()).status == 200
            await pause(LOOK_SECONDS)

    assert joined.status == 200
    assert [(each.status, each.json["resource"]) for each in (refused, again)] == [(403, resource)] * 2
    assert unknown.code == "member_not_found"
    assert await members(secured) == {"bob"}


async def test_a_member_keeps_its_partitions_through_changes_of_other_rules(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the access rules does not affect members that may still read their topics.

    The group keeps the decisions about fewer members than it has.
    """
    monkeypatch.setattr(coordinated_group, "DECIDED_MAX", 1)
    await create(secured, "shop.a")
    ann, bob = await member(secured, "ann"), await member(secured, "bob")
    answers = []
    for each in (ann, bob):
        await secured.acl(f"user:{each.name}", "read", "topic:shop.*")
        answers.append(await each.beat(topics=["shop.a"]))
    for number in range(3):
        await secured.acl("user:other", "read", f"topic:other-{number}")
        answers += [await each.beat() for each in (ann, bob, ann, bob)]

    assert [answer.status for answer in answers] == [200] * 14
    assert await members(secured) == {"ann", "bob"}


async def test_a_member_may_give_up_a_topic_that_it_may_no_longer_read(secured: Secured) -> None:
    """A heartbeat may remove a forbidden topic from the subscription; a refused addition keeps the old topics."""
    await create(secured, "shop.a", "shop.b")
    ann = await member(secured, "ann")
    await secured.acl("user:ann", "read", "topic:shop.a")
    acl_id = await secured.acl("user:ann", "read", "topic:shop.b")
    await ann.beat(topics=["shop.a", "shop.b"])
    await delete_acl(secured, acl_id)
    changed = await ann.beat(topics=["shop.a"])
    after = await ann.beat()
    other = await ann.beat(topics=["shop.b"])
    kept = await ann.beat()

    assert [each.status for each in (changed, after, kept)] == [200] * 3
    assert (other.status, other.json["resource"]) == (403, "topic:shop.b")


async def test_requests_of_others_neither_remove_a_member_nor_decide_for_it(secured: Secured) -> None:
    """A heartbeat from another principal or with another epoch is refused; only the member's own heartbeat decides."""
    await create(secured, "shop.a")
    ann, eve = await member(secured, "ann"), await member(secured, "eve")
    acl_id = await secured.acl("user:ann", "read", "topic:shop.a")
    await ann.beat(topics=["shop.a"])
    poor = await Member(secured, eve.token, "ann", ann.epoch).beat()
    await secured.acl("user:eve", "read", "topic:shop.a")
    kept = await ann.beat()
    await delete_acl(secured, acl_id)
    rich = await Member(secured, eve.token, "ann", ann.epoch).beat()
    stale = await Member(secured, ann.token, "ann", 77).beat()
    before = await members(secured)
    refused = await ann.beat()

    assert [each.json["resource"] for each in (poor, rich)] == [f"group:{GROUP}"] * 2
    assert (kept.status, stale.code, before) == (200, "member_fenced", {"ann"})
    assert (refused.code, refused.json["resource"]) == ("forbidden", "topic:shop.a")
    assert await members(secured) == set()


async def test_a_member_is_removed_although_its_heartbeat_repeats_its_topics(secured: Secured) -> None:
    """A heartbeat with the whole subscription, as after a failed heartbeat, removes a member like a short heartbeat.

    A refused addition does not remove a member that may still read its own topics.
    """
    await create(secured, "shop.a", "shop.b")
    ann = await member(secured, "ann")
    acl_id = await secured.acl("user:ann", "read", "topic:shop.a")
    await ann.beat(topics=["shop.a"])
    addition = await ann.beat(topics=["shop.a", "shop.b"])
    kept = await members(secured)
    await delete_acl(secured, acl_id)
    refused = await ann.beat(topics=["shop.a"])

    assert (addition.status, kept) == (403, {"ann"})
    assert (refused.status, refused.json["resource"]) == (403, "topic:shop.a")
    assert await members(secured) == set()


async def test_a_stricter_mode_decides_members_again(open_: Secured) -> None:
    """`observe` counts a member's missing right once for each change, and `enforce` removes the member."""
    await create(open_, "shop.a")
    ann = await member(open_, "ann")
    await ann.beat(topics=["shop.a"])
    denied = []
    await open_.set_mode(open_.admin, "observe")
    for number in range(2):
        for _ in range(3):
            assert (await ann.beat()).status == 200
        listed = (await open_.call("GET", "/v1/security", open_.admin)).json["would_be_denied"]
        denied.append({each["resource"]: each["count"] for each in listed if each["principal"] == "user:ann"})
        await open_.acl("user:other", "read", f"topic:other-{number}")
    await open_.set_mode(open_.admin, "enforce")
    refused = await ann.beat()

    assert denied == [{"topic:shop.a": 1}, {"topic:shop.a": 2}]
    assert (refused.status, refused.json["resource"]) == (403, "topic:shop.a")
    assert await members(open_) == set()
