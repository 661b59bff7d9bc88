"""Commits of transactions together with a group's offsets: both are stored, or neither, even if the store fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

import pytest

from cluster_kit import Cluster
from fairlead_api.bodies.group_requests import CommitRequest, OffsetCommit
from fairlead_api.identifiers import TopicId
from fairlead_api.problems import SideEffect
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.registry.transaction_records import Outcome
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.transactions.decisions import Begin, Decide, Decided
from group_kit import GroupClient, GroupMember, filled_topic, settle
from refusals import refuses
from troubled_store import Trouble, TroubledStore

TOPIC = "flights"


@dataclass
class Scene:
    """One broker that coordinates a group, with a store that may fail."""

    cluster: Cluster
    faults: list[Trouble]
    group: GroupClient
    topic_id: TopicId

    async def begin(self) -> TransactionId:
        """Begin a transaction."""
        begun = await self.cluster.broker(1).transactions.begin(Begin(60_000), lambda _: None)
        return begun.transaction

    def commit(
        self, transaction: TransactionId, offset: int, member: GroupMember | None = None, partition: int = 0
    ) -> Awaitable[Decided]:
        """Commit a transaction with an offset, and retry until the group has a coordinator."""
        request = CommitRequest(
            member_id=member.member_id if member else None,
            member_epoch=member.epoch if member else -1,
            offsets=(OffsetCommit(topic=TOPIC, partition=partition, offset=offset),),
        )
        decide = Decide(transaction.epoch, Outcome.COMMIT, partitions={self.topic_id: (1,)}, has_offsets=True)

        async def about(groups: Groups) -> Decided:
            decided = await self.cluster.broker(1).transactions.commit_with(
                {transaction.producer_id: decide},
                lambda _: None,
                lambda decision: groups.decide("etl", request, decision),
            )
            return decided[transaction.producer_id]

        return self.group.call(about)

    async def abort(self, transaction: TransactionId) -> Decided:
        """Abort a transaction."""
        request = Decide(transaction.epoch, Outcome.ABORT)
        return await self.cluster.broker(1).transactions.decide(
            transaction.producer_id, request, lambda _: None
        )

    async def member(self) -> GroupMember:
        """Return the only member of the group, which owns all partitions."""
        member = self.group.member("m1", TOPIC)
        await settle(member)
        return member


@pytest.fixture
async def scene(cluster: Cluster) -> Scene:
    """Return a broker with a topic of 100 records in each of 4 partitions."""
    faults: list[Trouble] = []
    cluster.store = TroubledStore(cluster.store, faults)  # type: ignore[assignment]
    await cluster.start(1)
    topic_id = await filled_topic(cluster, TOPIC, partitions=4, records=100, replication_factor=1)
    return Scene(cluster, faults, GroupClient(cluster, "etl"), topic_id)


@pytest.mark.parametrize("trouble", ["away", "lost before", "lost after"])
async def test_a_commit_without_an_answer_is_found_or_repeated(scene: Scene, trouble: Trouble) -> None:
    """After a failed write, the repeated request commits the transaction, or finds that it is committed."""
    member = await scene.member()
    transaction = await scene.begin()
    scene.faults.append(trouble)
    decided = await scene.commit(transaction, 7, member)

    [refused] = scene.group.refusals
    assert refused.side_effect is (SideEffect.NONE if trouble == "away" else SideEffect.MAYBE)
    assert (decided.outcome, decided.duplicate) == (Outcome.COMMIT, trouble == "lost after")
    assert await scene.group.offsets() == {(TOPIC, 0): 7}


async def test_a_repeated_commit_of_a_former_member_gets_the_first_answer(scene: Scene) -> None:
    """A repeated commit is answered as a duplicate, even if the member has since left the group."""
    member = await scene.member()
    transaction = await scene.begin()
    first = await scene.commit(transaction, 7, member)
    await scene.group.call(lambda groups: groups.leave("etl", member.member_id, static=False))
    again = await scene.commit(transaction, 7, member)

    assert (first.duplicate, again.duplicate) == (False, True)


async def test_a_refused_offset_leaves_the_transaction_open(scene: Scene) -> None:
    """A commit by a former member, or with a refused offset, stores nothing; the transaction can be aborted."""
    member = await scene.member()
    transaction = await scene.begin()
    ghost = scene.group.member(member.member_id, TOPIC, epoch=member.epoch - 1)
    with refuses("stale_member_epoch"):
        await scene.commit(transaction, 7, ghost)
    with refuses("offset_out_of_range"):
        await scene.commit(transaction, 1_000, member)
    with refuses("partition_not_found"):
        await scene.commit(transaction, 7, member, partition=4)
    aborted = await scene.abort(transaction)
    with refuses("transaction_aborted"):
        await scene.commit(transaction, 7, member)

    assert (aborted.outcome, aborted.duplicate) == (Outcome.ABORT, False)
    assert await scene.group.offsets() == {}


async def test_commits_that_arrive_together_share_a_write(scene: Scene) -> None:
    """Commits of several producers with offsets of a group are written together."""
    await scene.commit(await scene.begin(), 1)
    transactions = [await scene.begin() for _ in range(4)]
    meters = scene.cluster.broker(1).groups._shared.meters
    before = meters._transactions._value.get()
    decided = await asyncio.gather(
        *(
            scene.commit(each, 5 + partition, partition=partition)
            for partition, each in enumerate(transactions)
        )
    )

    assert {each.outcome for each in decided} == {Outcome.COMMIT}
    assert await scene.group.offsets() == {(TOPIC, number): 5 + number for number in range(4)}
    assert meters._transactions._value.get() - before <= 2


async def test_a_transaction_changed_during_the_write_does_not_refuse_the_others(scene: Scene) -> None:
    """If one of several transactions is aborted between read and write, the other transactions are still committed."""
    await scene.commit(await scene.begin(), 1)
    aborted, kept = await scene.begin(), await scene.begin()
    written = asyncio.Event()
    scene.faults.append(written)
    commits = [
        asyncio.ensure_future(scene.commit(each, 5 + number, partition=number))
        for number, each in enumerate((aborted, kept))
    ]
    await scene.abort(aborted)
    written.set()
    with refuses("transaction_aborted"):
        await commits[0]
    decided = await commits[1]

    assert decided.outcome is Outcome.COMMIT
    assert await scene.group.offsets() == {(TOPIC, 0): 1, (TOPIC, 1): 6}
