from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from etcd_cluster import EtcdCluster, etcd_cluster
from etcd_pods import EtcdPods
from fairlead_broker.coordination.etcd import EtcdCoordination, EtcdOptions, EtcdTls
from fairlead_broker.coordination.protocol import CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.store_writes import Put
from fairlead_operator.etcd_members import (
    EtcdMembersClient,
    EtcdRefused,
    EtcdUnavailable,
    LearnerNotInSync,
    MemberNotFound,
)
from fairlead_operator.naming import Scheme
from fairlead_operator.plan.etcd_actions import (
    AddLearner,
    DeleteEtcdClaim,
    DeleteEtcdPod,
    DisarmNoSpace,
    EtcdPlan,
    PromoteLearner,
    RemoveMember,
)
from refusals import raises
from waiting import pause


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[EtcdPods]:
    """Yield a managed etcd without members."""
    pods = EtcdPods(tmp_path)
    yield pods
    await pods.close()


async def write(pods: EtcdPods, value: bytes) -> None:
    """Store a value as a broker does."""
    async with EtcdCoordination(EtcdOptions(tuple(map(pods.url, pods.pods)))) as client:
        await client.transact((), (Put("/kept", value),))


async def fill(pods: EtcdPods) -> None:
    """Store large values until etcd refuses a value."""
    async with EtcdCoordination(EtcdOptions(tuple(map(pods.url, pods.pods)))) as client:
        for number in range(100):
            await client.transact((), (Put(f"/large/{number}", bytes(1 << 20)),))


async def share_taken(pods: EtcdPods, ordinal: int) -> float:
    """Return the used fraction of a store's quota, from the metrics that the alert for full stores uses."""
    async with ClientSession() as session, session.get(f"{pods.url(ordinal)}/metrics") as answer:
        page = await answer.text()
    told = {name: float(value) for name, value in re.findall(r"^(etcd_\w+) (\S+)$", page, re.MULTILINE)}
    return told["etcd_mvcc_db_total_size_in_bytes"] / told["etcd_server_quota_backend_bytes"]


async def read(pods: EtcdPods, ordinal: int) -> bytes:
    """Read the value from one member with a linearizable read."""
    async with EtcdCoordination(EtcdOptions((pods.url(ordinal),))) as client:
        page = await client.list("/kept")
    return page.items[0].value


@pytest.mark.scenario
async def test_members_grow_and_shrink_one_at_a_time(pods: EtcdPods) -> None:
    """Members are added and removed one at a time; each new member is a learner first, and the data is kept."""
    await pods.bring(pods.wish(1))
    await write(pods, b"precious")
    grown = await pods.bring(pods.wish(3))
    three = {row.name: row.role for row in grown.status.members}
    await pods.bring(pods.wish(5))
    on_the_last = await read(pods, 4)
    shrunk = await pods.bring(pods.wish(3))
    five_to_three = list(pods.orders)
    alone = await pods.bring(pods.wish(1))

    assert on_the_last == b"precious"
    assert sorted(three.values()) == ["follower", "follower", "leader"]
    added = [order.ordinal for order in five_to_three if isinstance(order, AddLearner)]
    assert added == [1, 2, 3, 4]
    assert {each.ordinal for each in five_to_three if isinstance(each, PromoteLearner)} == {1, 2, 3, 4}
    removed = [order.ordinal for order in pods.orders if isinstance(order, RemoveMember)]
    assert removed == [4, 3, 2, 1]
    assert shrunk.status.replicas == 3
    assert alone.status.ready == 1
    assert await read(pods, 0) == b"precious"
    assert set(pods.claims) == {0}


async def test_an_interrupted_growth_is_reversed(pods: EtcdPods) -> None:
    """A learner that cannot start has no effect, and is removed when it is no longer wanted."""
    await pods.bring(pods.wish(1))
    pods.unschedulable = {1}
    joining = await pods.bring(pods.wish(3), until=lambda plan: "joins" in plan.verdict.message)
    back = await pods.bring(pods.wish(1))

    assert joining.verdict.reason == "ChangingMembers"
    assert back.status.replicas == 1
    assert isinstance(pods.orders[-1], RemoveMember | DeleteEtcdClaim)


class Writer:
    """A broker that writes to etcd with the URL scheme that the plan prescribes."""

    def __init__(self, pods: EtcdPods) -> None:
        """Begin without TLS."""
        self._pods = pods
        self.number = 0

    async def run(self, over: asyncio.Event) -> None:
        """Write numbers until the load ends; a number whose write fails is written again."""
        while not over.is_set():
            scheme: Scheme = "https" if "https" in self._pods.broker_schemes else "http"
            try:
                async with self.client(scheme) as client:
                    for _ in range(20):
                        await client.transact((), (Put("/kept", str(self.number + 1).encode()),))
                        self.number += 1
                        await pause(0.01)
            except (CoordinationUnavailable, UnknownOutcome):
                continue

    def client(self, scheme: Scheme) -> EtcdCoordination:
        """Return a client that connects to all members."""
        folder = self._pods.certificates
        tls = (
            EtcdTls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key") if scheme == "https" else None
        )
        urls = tuple(self._pods.url_by(scheme, each) for each in sorted(self._pods.pods))
        return EtcdCoordination(EtcdOptions(urls, tls))


@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.scenario)])
async def test_a_running_etcd_changes_to_tls_and_back(pods: EtcdPods, replicas: int) -> None:
    """Members and brokers change to TLS one at a time while a broker writes; later calls without TLS fail."""
    await pods.bring(pods.wish(replicas))
    writer, over = Writer(pods), asyncio.Event()

    async def change(*, tls: bool) -> None:
        pods.wants_tls = tls
        scheme: Scheme = "https" if tls else "http"

        def is_done(plan: EtcdPlan) -> bool:
            assert plan.inputs is not None
            pods.broker_schemes = frozenset({plan.inputs.transport.client_scheme})
            phases = {pod.seen.phase for pod in pods.pods.values()}
            return (
                (plan.verdict.reason, plan.requeue_seconds) == ("Healthy", None)
                and phases == {"tls" if tls else "plain"}
                and pods.broker_schemes == {scheme}
            )

        await pods.bring(pods.wish(replicas), until=is_done)

    async with asyncio.TaskGroup() as group:
        group.create_task(writer.run(over))
        await change(tls=True)
        written = writer.number
        with pytest.raises(EtcdUnavailable):
            await pods.client.status(pods.url_by("http", 0))
        with pytest.raises(EtcdUnavailable):
            await pods.client.with_tls(without_certificate(pods.certificates)).status(pods.url_by("https", 0))
        by_tls = {url for member in await pods.calls(0).members(pods.url(0)) for url in member.peer_urls}
        await change(tls=False)
        over.set()
    in_clear = {url for member in await pods.client.members(pods.url(0)) for url in member.peer_urls}

    assert written > 0
    assert int(await read(pods, 0)) >= writer.number
    assert all(url.startswith("https://") for url in by_tls)
    assert all(url.startswith("http://") for url in in_clear)


def without_certificate(folder: Path) -> ssl.SSLContext:
    """Return the context of a caller that trusts the authority and has no certificate."""
    return ssl.create_default_context(cafile=folder / "ca.crt")


@pytest.mark.scenario
async def test_a_lost_volume_makes_a_new_member(pods: EtcdPods) -> None:
    """The old member of a lost volume, even if it led, is removed before a member with the empty volume starts."""
    await pods.bring(pods.wish(3))
    await write(pods, b"precious")
    before = {member.member_id for member in (await pods.look()).members or ()}
    observed = await pods.look()
    leader = next(each for each, answer in observed.answers.items() if answer.leader_id == answer.member_id)
    pods.lose(leader)
    pods.orders.clear()
    seen = await pods.bring(pods.wish(3), until=lambda plan: plan.verdict.reason == "MemberLost")
    await pods.bring(pods.wish(3))
    after = {member.member_id for member in (await pods.look()).members or ()}

    assert seen.verdict.status == "False"
    assert len(before & after) == 2
    assert len(after) == 3
    kinds = [type(order) for order in pods.orders if not isinstance(order, PromoteLearner)]
    assert kinds == [RemoveMember, AddLearner, DeleteEtcdPod]
    assert await read(pods, leader) == b"precious"


async def test_a_lost_majority_is_reported_and_nothing_is_done(pods: EtcdPods) -> None:
    """After the loss of two of three volumes, no request changes anything, and the third member keeps its data."""
    await pods.bring(pods.wish(3))
    pods.lose(1)
    pods.lose(2)
    pods.orders.clear()
    told = await pods.bring(pods.wish(5), until=lambda plan: plan.verdict.reason == "QuorumLost")
    for _ in range(5):
        told = await pods.step(pods.wish(5))

    assert pods.orders == []
    assert told.verdict.status == "False"
    assert "member-1, member-2" in told.verdict.message
    assert told.inputs is not None
    assert (told.inputs.replicas, told.inputs.state) == (3, "existing")
    assert pods.claims[0].member_id


async def test_a_new_template_restarts_the_leader_last(pods: EtcdPods) -> None:
    """A new template restarts members one at a time, each once the previous one is healthy, and replaces none."""
    await pods.bring(pods.wish(3))
    observed = await pods.look()
    leader = next(each for each, answer in observed.answers.items() if answer.leader_id == answer.member_id)
    pods.orders.clear()
    await pods.bring(pods.wish(3, "second"))

    assert [type(order) for order in pods.orders] == [DeleteEtcdPod] * 3
    order = [each.ordinal for each in pods.orders if isinstance(each, DeleteEtcdPod)]
    assert sorted(order) == [0, 1, 2]
    assert order[-1] == leader or order[-1] not in order[:-1]
    assert all(pod.seen.pod_spec_hash == "second" for pod in pods.pods.values())


async def test_a_full_store_takes_writes_again_when_volumes_have_grown(pods: EtcdPods) -> None:
    """When volumes of a full store grow, members restart one at a time, the alarm is cleared, and no value is lost."""
    pods.quota_bytes = 8 << 20
    await pods.bring(pods.wish(3))
    await write(pods, b"precious")
    with raises(CoordinationUnavailable, "exceeded"):
        await fill(pods)
    full = await pods.bring(pods.wish(3), until=lambda plan: "NOSPACE" in plan.verdict.message)
    shares = [await share_taken(pods, ordinal) for ordinal in pods.pods]
    pods.orders.clear()
    for _ in range(3):
        await pods.step(pods.wish(3))
    waits = list(pods.orders)
    pods.quota_bytes = 64 << 20
    await pods.bring(pods.wish(3))

    assert full.verdict.reason == "MembersUnhealthy"
    assert waits == []
    assert max(shares) > 0.8
    assert sorted(each.ordinal for each in pods.orders if isinstance(each, DeleteEtcdPod)) == [0, 1, 2]
    assert [type(order) for order in pods.orders] == [*[DeleteEtcdPod] * 3, DisarmNoSpace]
    assert await read(pods, 0) == b"precious"
    await write(pods, b"more")
    assert await read(pods, 1) == b"more"


@pytest.fixture
async def lax(tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    """Yield three members that accept another member at any time."""
    async with etcd_cluster(tmp_path, 3, arguments=["--strict-reconfig-check=false"]) as cluster:
        yield cluster


async def test_a_change_too_soon_is_refused(three: EtcdCluster) -> None:
    """Members that have just connected refuse to add another member; the client treats the refusal as temporary."""
    leader = await three.leader()
    # Members refuse for five seconds, which the start of three members may take.
    follower = next(member for member in three.members if member is not leader)
    follower.kill()
    follower.start()
    await three.wait_until_ready((follower,))
    async with EtcdMembersClient() as client:
        with raises(EtcdRefused, "unhealthy"):
            await client.add_learner(leader.url, "http://127.0.0.1:1")


async def test_what_etcd_refuses_has_a_type(lax: EtcdCluster) -> None:
    """The type of a refusal decides the next step: wait, read the state again, or stop."""
    leader = await lax.leader()
    follower = next(member for member in lax.members if member is not leader)
    async with EtcdMembersClient() as client:
        listed = await client.members(leader.url)
        await client.add_learner(leader.url, "http://127.0.0.1:1")
        with pytest.raises(EtcdRefused):
            await client.add_learner(leader.url, "http://127.0.0.1:1")
        learner = next(each for each in await client.members(leader.url) if each.learner)
        with pytest.raises(LearnerNotInSync):
            await client.promote(leader.url, learner.member_id)
        await client.remove(leader.url, learner.member_id)
        with pytest.raises(MemberNotFound):
            await client.remove(leader.url, learner.member_id)
        target = next(each for each in listed if each.name == follower.name)
        await client.transfer_leadership(leader.url, target.member_id)
        moved = await client.status(follower.url)
        follower.kill()
        with raises(EtcdUnavailable, follower.url):
            await client.status(follower.url)

    assert [member.learner for member in listed] == [False] * 3
    assert moved.leader_id == moved.member_id == target.member_id
    assert moved.healthy
