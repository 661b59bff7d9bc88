"""Calls between brokers over real HTTP/2, and the callers that are admitted."""

import asyncio
import socket
from contextlib import suppress

import msgspec
import pytest

from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampUs,
    TopicId,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import SystemClock
from fairlead_broker.peers.messages import (
    Divergence,
    LogEnd,
    PeerIncarnation,
    ProgressPartition,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResult,
)
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.peers.proofs import BrokerKey, ProofMaker
from fairlead_broker.peers.transaction_messages import EndMessage, EndsRequest
from fairlead_broker.registry.records import BrokerState
from fairlead_broker.registry.store_writes import Delete
from refusals import raises, refuses
from waiting import pause, pause_blocking

TOPIC = TopicId("0a0a0a0a-0b0b-4c0c-8d0d-0e0e0e0e0e0e")
OTHER = PartitionIndex(7)


def fetch(max_wait_ms: int = 0) -> ReplicaFetchRequest:
    """Return a request that begins a session over one partition."""
    wanted = ReplicaFetchPartition(
        topic_id=TOPIC,
        partition=PartitionIndex(3),
        generation=1,
        leader_epoch=5,
        last_epoch=LeaderEpoch(4),
        fetch_offset=Offset(10),
        synced_offset=Offset(9),
        log_start=Offset(0),
        max_bytes=1 << 20,
    )
    return ReplicaFetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 24, partitions=[wanted])


def result(partition: int, *data: bytes, **about: object) -> ReplicaFetchResult:
    """Return one partition of an answer."""
    return ReplicaFetchResult(
        topic_id=TOPIC,
        partition=PartitionIndex(partition),
        data=[memoryview(part) for part in data],
        **about,
    )


async def test_fetch_brings_bytes_and_offsets(pair) -> None:
    """A fetch returns batches unchanged, in one view for several pieces, with offsets, divergence and problems."""
    follower, leader = pair
    leader.replicas.answer = ReplicaFetchAnswer(
        77,
        [
            result(3, b"a" * 1_000_000, b"b" * 4_000_000, leader_epoch=LeaderEpoch(5), end_offset=Offset(20)),
            result(4, high_watermark=Offset(8), log_start=Offset(2)),
            result(5, diverging=Divergence(epoch=LeaderEpoch(3), end_offset=Offset(6))),
            result(6, problem="stale_leader_epoch"),
        ],
    )

    answer = await follower.peers.replica_fetch(leader.id, fetch())

    assert answer.session == 77
    [copied, moved, diverging, refused] = answer.results
    [data] = copied.data
    assert bytes(data) == b"a" * 1_000_000 + b"b" * 4_000_000
    assert (copied.leader_epoch, copied.end_offset, copied.high_watermark) == (5, 20, None)
    assert (moved.high_watermark, moved.log_start, moved.data) == (8, 2, ())
    assert diverging.diverging == Divergence(epoch=LeaderEpoch(3), end_offset=Offset(6))
    assert refused.problem == "stale_leader_epoch"
    assert leader.replicas.asked == [(PeerIncarnation(follower.id, follower.epoch), fetch())]


async def test_received_batches_share_one_buffer(pair) -> None:
    """Batches of several partitions are views of one body, without a copy for each partition."""
    follower, leader = pair
    leader.replicas.answer = ReplicaFetchAnswer(1, [result(0, b"x" * 800), result(1, b"y" * 800)])

    first, second = (await follower.peers.replica_fetch(leader.id, fetch())).results

    assert first.data[0].obj is second.data[0].obj


async def test_transactions_of_a_peer(pair) -> None:
    """A peer confirms ends of transactions one by one, receives hints, and returns its open transactions."""
    asking, leader = pair
    ends = [
        EndMessage(ProducerId(7), ProducerEpoch(4), TOPIC, PartitionIndex(number), TimestampUs(5))
        for number in range(3)
    ]
    confirmed = await asking.peers.transaction_ends(leader.id, EndsRequest(ends=ends))
    await asking.peers.transaction_looks(leader.id, [ProducerId(7)])
    [opened] = await asking.peers.open_transactions(leader.id, ProducerId(3))

    assert confirmed == [True, False, True]
    assert leader.replicas.transactions.hints == [7]
    assert (opened.partition, opened.epoch, opened.first_offset) == (3, 4, 2)


async def test_progress_and_log_ends(pair) -> None:
    """A follower reports its synced offset to the leader, and a broker gets the log ends of a peer's partitions."""
    follower, leader = pair
    held, unknown = TopicIdPartition(TOPIC, PartitionIndex(1)), TopicIdPartition(TOPIC, OTHER)
    end = LogEnd(topic_id=TOPIC, partition=PartitionIndex(1), epoch=None, end_offset=Offset(0))
    leader.replicas.ends[held] = end
    told = ProgressRequest(
        partitions=[
            ProgressPartition(
                topic_id=TOPIC,
                partition=PartitionIndex(1),
                generation=0,
                leader_epoch=5,
                synced_offset=Offset(12),
            )
        ]
    )

    await follower.peers.progress(leader.id, told)
    ends = await follower.peers.log_ends(leader.id, [held, unknown])

    assert leader.replicas.asked == [(PeerIncarnation(follower.id, follower.epoch), told)]
    assert ends == {held: end}


async def test_revisions_travel_both_ways(pair) -> None:
    """Both sides of a call receive each other's mirror revision and remember the highest revision."""
    follower, leader = pair
    await follower.peers.log_ends(leader.id, [])

    assert follower.peers.seen_revision(leader.id) == leader.side.mirror.metadata.revision
    assert leader.peers.seen_revision(follower.id) == follower.side.mirror.metadata.revision
    assert leader.peers.seen_revision(BrokerId(9)) == 0


async def test_parked_fetch_ends_when_its_follower_goes(pair) -> None:
    """The leader cancels the long poll of a follower that has disconnected."""
    follower, leader = pair
    leader.replicas.parked = asyncio.Event()
    async with asyncio.timeout(10):
        with pytest.raises(PeerUnavailable) as caught:
            await follower.peers.replica_fetch(leader.id, fetch(30_000), timeout_seconds=0.2)
        await leader.replicas.cancelled.wait()

    assert caught.value.sent
    assert caught.value.timed_out


async def test_dead_peer_is_reported_at_once(pair, world) -> None:
    """A call to a closed port fails quickly, and reports that nothing was sent."""
    first, _ = pair
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        await world.register(BrokerId(3), f"127.0.0.1:{closed.getsockname()[1]}", "x")
        await world.settle()
        with pytest.raises(PeerUnavailable) as caught:
            await first.peers.log_ends(BrokerId(3), [])

    assert not caught.value.sent
    assert not caught.value.expected


async def test_a_call_to_a_stopping_peer_fails_without_a_warning(pair, world) -> None:
    """A call to a stopping peer fails without a warning, because its registration says that it stops."""
    first, _ = pair
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        await world.register(BrokerId(3), address, "x", BrokerState.STOPPING)
        await world.settle()
        with pytest.raises(PeerUnavailable) as caught:
            await first.peers.log_ends(BrokerId(3), [])

    assert caught.value.expected


async def test_peer_that_goes_under_a_call_may_have_acted(pair, world) -> None:
    """A connection that breaks after the request, as with a killed broker, leaves the outcome unknown."""
    first, _ = pair
    arrived = b""

    async def take_and_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        while b"the body" not in arrived:
            arrived += await reader.read(65_536)
        writer.transport.abort()

    server = await asyncio.start_server(take_and_go, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await world.register(BrokerId(3), f"127.0.0.1:{port}", "x")
        await world.settle()
        with pytest.raises(PeerUnavailable) as caught:
            await first.peers.call(BrokerId(3), "POST", "/v1/produce", body=b"the body", timeout_seconds=10)

    assert caught.value.sent


async def test_silent_peer_is_given_up(pair, world) -> None:
    """A call to a silent peer ends after its timeout, and leaves the outcome unknown."""
    first, _ = pair
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        await world.register(BrokerId(3), f"127.0.0.1:{silent.getsockname()[1]}", "x")
        await world.settle()
        with pytest.raises(PeerUnavailable) as caught:
            await first.peers.call(BrokerId(3), "GET", "/v1/cluster", timeout_seconds=0.2)

    assert caught.value.sent
    assert caught.value.timed_out


async def test_a_cancellation_after_the_end_of_a_call_is_kept(pair, world) -> None:
    """A task that is cancelled between the end of its call and its next step raises CancelledError."""
    first, _ = pair
    await world.register(BrokerId(3), "127.0.0.1:1", "x")
    await world.settle()

    async def called() -> None:
        with suppress(PeerUnavailable):
            await first.peers.call(BrokerId(3), "GET", "/v1/cluster", timeout_seconds=10)

    lost = 0
    for _ in range(10):
        task = asyncio.create_task(called())
        await pause(0)
        # The call ends in a thread while the event loop is blocked.
        pause_blocking(0.02)
        # A task that has already ended cannot be cancelled.
        asked = task.cancel()
        await asyncio.wait({task})
        lost += asked and not task.cancelled()

    assert lost == 0


async def test_unregistered_peer_is_not_called(pair) -> None:
    """A broker without a registration cannot be called, because its address is unknown."""
    with raises(PeerUnavailable, 9):
        await pair[0].peers.log_ends(BrokerId(9), [])


async def test_calls_after_close_fail(pair) -> None:
    """Calls fail after the broker has closed its connections."""
    first, second = pair
    await first.peers.close()
    with pytest.raises(PeerUnavailable):
        await first.peers.log_ends(second.id, [])


def as_other(real, **changes: object) -> Peers:
    """Return calls with a broker's headers, some of which are wrong."""
    own = real.peers.own
    claimed = {name: getattr(own, name) for name in ("cluster_id", "broker", "secret", "epoch", "revision")}
    key = changes.pop("key", real.key)
    identity = type(own)(**{**claimed, **changes})
    proofs = (
        None
        if key is None
        else ProofMaker(key, real.peers.own.cluster_id, identity.broker, identity.epoch, SystemClock())
    )
    return Peers(identity, lambda: real.side.registrations, SystemClock(), None, proofs)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": BrokerKey("guessed")}, "its proof is not signed with its registered key"),
        ({"key": None}, "its proof is missing"),
        ({"broker": BrokerId(8)}, "it is not registered in this cluster"),
    ],
)
async def test_impostors_are_refused(pair, changes: dict, reason: str) -> None:
    """A caller without proof of its registration is refused with the reason, and changes nothing."""
    first, second = pair
    peers = as_other(first, **changes)
    try:
        with pytest.raises(ProblemError) as caught:
            await peers.replica_fetch(second.id, fetch())
    finally:
        await peers.close()

    assert caught.value.code == "peer_refused"
    assert reason in caught.value.detail
    assert second.replicas.asked == []


async def test_brokers_of_two_releases_talk(world) -> None:
    """Calls to and from a broker of an older release contain a secret instead of a proof (rule A20).

    A call with a wrong secret is refused.
    """
    older, newer = await world.start(1, older=True), await world.start(2)
    await world.settle()
    await older.peers.log_ends(newer.id, [])
    # Unlike an older release, the test's listener checks proofs: its refusal shows that the call contained no proof.
    with refuses("peer_refused", "proof"):
        await newer.peers.log_ends(older.id, [])
    peers = as_other(older, secret="guessed")
    try:
        with refuses("peer_refused", "secret"):
            await peers.log_ends(newer.id, [])
    finally:
        await peers.close()


async def test_peers_of_another_cluster_do_not_talk(world) -> None:
    """A call that reaches a broker of another cluster fails."""
    stranger, member = (
        await world.start(1, cluster_id="99999999-2222-4333-8444-555555555555"),
        await world.start(2),
    )
    await world.settle()

    with raises(PeerUnavailable, 2, 11111111):
        await stranger.peers.replica_fetch(member.id, fetch())
    assert member.replicas.asked == []


async def test_calls_of_an_older_life_are_refused(pair, world) -> None:
    """Calls from a broker's previous incarnation are refused."""
    first, second = pair
    await world.coordination.transact((), (Delete(world.keys.broker(first.id)),))
    newer = await world.register(first.id, str(first.bound), first.secret, key=first.key)
    await world.settle()

    with pytest.raises(ProblemError) as caught:
        await first.peers.replica_fetch(second.id, fetch())

    assert caught.value.code == "stale_broker_epoch"
    assert caught.value.data["broker_epoch"] == newer


async def test_a_newer_life_waits_for_the_mirror(pair, world) -> None:
    """A call from a new incarnation waits until this mirror shows its registration."""
    first, second = pair
    await world.coordination.transact((), (Delete(world.keys.broker(first.id)),))
    newer = await world.register(first.id, str(first.bound), first.secret, key=first.key)
    peers = as_other(first, epoch=lambda: newer)
    try:
        await peers.replica_fetch(second.id, fetch())
    finally:
        await peers.close()

    assert second.replicas.asked == [(PeerIncarnation(first.id, BrokerEpoch(newer)), fetch())]


async def test_nonsense_is_refused(pair) -> None:
    """A malformed body is refused in a request and in an answer, and the error names the fault."""
    first, second = pair
    body = msgspec.json.encode({"max_wait_ms": -1})
    answer = await first.peers.call(second.id, "POST", "/peer/v1/replica-fetch", body=body, timeout_seconds=5)

    assert answer.status == 400
    assert "max_wait_ms" in msgspec.json.decode(answer.body)["detail"]
