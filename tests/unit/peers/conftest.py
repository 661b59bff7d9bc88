"""Brokers of one cluster in this process, with a common store, a mirror for each, and real peer listeners."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from fairlead_api.bodies.cleaning import ReplicaCleaning
from fairlead_api.bodies.operations import BrokerReport
from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
)
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.peers.cleaning import CleaningRequest
from fairlead_broker.peers.digests import DigestRequest, RangeDigest
from fairlead_broker.peers.identity import PeerIdentity, secret_hash
from fairlead_broker.peers.messages import (
    LogEnd,
    PeerIncarnation,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchRequest,
)
from fairlead_broker.peers.peers import Peers
from fairlead_broker.peers.positions import PositionAsked, PositionFound
from fairlead_broker.peers.promises import PromiseAsked, PromiseGiven
from fairlead_broker.peers.proofs import BrokerKey, ProofMaker
from fairlead_broker.peers.transaction_messages import EndMessage, OpenAt
from fairlead_broker.peers.voters import PartitionVoters
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    ClusterRecord,
    Directory,
    encode,
)
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide
from fairlead_broker.runtime.quota_exchange import QuotaExchange
from fairlead_broker.runtime.quota_view import QuotaMetrics, QuotaView
from fairlead_broker.server.connections.bound_socket import BoundSocket
from fairlead_broker.server.http.application import Application
from fairlead_broker.server.http.body import BodyBudget, BodyLimits
from fairlead_broker.server.http.http2_listener import Http2Listener
from fairlead_broker.server.http.peer_gate import PeerGate
from fairlead_broker.server.http.problem_handler import FailureLog
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES, PeerCalls
from fairlead_broker.telemetry import Telemetry

CLUSTER_ID = "11111111-2222-4333-8444-555555555555"


class Transactions:
    """Stub that confirms the ends of transactions in partitions with even numbers, and stores the hints it gets."""

    def __init__(self) -> None:
        self.ends = self.looks = self
        self.hints: list[ProducerId] = []

    async def end_here(self, ends: Sequence[EndMessage]) -> list[bool]:
        """Confirm the ends in partitions with even numbers."""
        return [end.partition % 2 == 0 for end in ends]

    def hint(self, producers: Sequence[ProducerId]) -> None:
        """Keep the hint."""
        self.hints += producers

    def open_at(self, producer_id: ProducerId) -> list[OpenAt]:
        """Return an open transaction in the partition whose number is the producer id."""
        return [
            OpenAt(
                topic_id=TopicId("0a0a0a0a-0b0b-4c0c-8d0d-0e0e0e0e0e0e"),
                partition=PartitionIndex(producer_id),
                epoch=ProducerEpoch(4),
                first_offset=Offset(2),
                age_seconds=0.5,
            )
        ]


@dataclass
class Replicas:
    """Replicas that return given answers and keep the received requests."""

    answer: ReplicaFetchAnswer = field(default_factory=lambda: ReplicaFetchAnswer(1, []))
    parked: asyncio.Event | None = None
    """Event that each fetch waits for, or None to answer at once."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[PeerIncarnation, object]] = field(default_factory=list)
    ends: dict[TopicIdPartition, LogEnd] = field(default_factory=dict)
    transactions: Transactions = field(default_factory=Transactions)

    async def fetch(self, peer: PeerIncarnation, request: ReplicaFetchRequest) -> ReplicaFetchAnswer:
        """Return the answer, after waiting for the event `parked` if it is set."""
        self.asked.append((peer, request))
        self.begun.set()
        if self.parked is not None:
            try:
                await self.parked.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return self.answer

    def progress(self, peer: PeerIncarnation, request: ProgressRequest) -> None:
        """Record the request."""
        self.asked.append((peer, request))

    def log_ends(self, partitions: Sequence[TopicIdPartition]) -> list[LogEnd]:
        """Return the known log ends."""
        return [self.ends[key] for key in partitions if key in self.ends]

    async def report(self) -> BrokerReport:
        """Return a report without data."""
        return BrokerReport(broker=0)

    async def promises(self, asked: Sequence[PromiseAsked]) -> list[PromiseGiven]:
        """Answer each vacancy with the end of an empty log."""
        return [
            PromiseGiven(
                topic_id=each.topic_id,
                partition=each.partition,
                broker_epoch=BrokerEpoch(7),
                directory="d",
                generation=0,
                leader_epoch=each.leader_epoch,
                last_epoch=None,
                end_offset=Offset(0),
                log_start=Offset(0),
            )
            for each in asked
        ]

    def voters(self, partitions: Sequence[TopicIdPartition]) -> list[PartitionVoters]:
        """Return an empty list of voters for each partition."""
        return [
            PartitionVoters(
                topic_id=key.topic_id, partition=key.partition, leader_epoch=LeaderEpoch(3), replicas=[]
            )
            for key in partitions
        ]

    async def positions(self, asked: Sequence[PositionAsked]) -> list[PositionFound]:
        """Return positions of logs that begin at 3 and end at the requested offset."""
        return [
            PositionFound(
                topic_id=each.topic_id,
                partition=each.partition,
                log_start=Offset(3),
                high_watermark=each.offset or Offset(3),
            )
            for each in asked
        ]

    async def digest(self, request: DigestRequest) -> RangeDigest:
        """Report that this broker does not store the range."""
        self.asked.append((PeerIncarnation(BrokerId(0), BrokerEpoch(0)), request))
        return RangeDigest(state="not_held", next_offset=request.first_offset)

    async def cleaning(self, request: CleaningRequest) -> ReplicaCleaning:
        """Report that this broker does not store the partition."""
        self.asked.append((PeerIncarnation(BrokerId(0), BrokerEpoch(0)), request))
        return ReplicaCleaning(broker=0, state="not_held")


@dataclass
class Broker:
    """One broker: its outgoing calls and its peer listener."""

    id: BrokerId
    secret: str
    key: BrokerKey | None
    """Key of the broker's proofs, or None for a broker of an older release."""
    epoch: BrokerEpoch
    side: PeerSide
    replicas: Replicas
    listener: Http2Listener
    bound: BoundSocket
    mirroring: asyncio.Task[None]

    @property
    def peers(self) -> Peers:
        """Calls from the broker to its peers."""
        return self.side.peers


class World:
    """A set of brokers that share one store."""

    def __init__(self, coordination: EmbeddedCoordination) -> None:
        self.coordination = coordination
        self.keys = Keys("test")
        self.brokers: list[Broker] = []

    async def register(
        self,
        broker: BrokerId,
        peer_address: str,
        secret: str,
        state: BrokerState = BrokerState.RUNNING,
        key: BrokerKey | None = None,
    ) -> BrokerEpoch:
        """Put a registration with a new incarnation."""
        registration = BrokerRegistration(
            state=state,
            addresses=Addresses(data="127.0.0.1:1", peer=peer_address, ops="127.0.0.1:2"),
            rack=None,
            release="0.1.0",
            peer_secret_hash=secret_hash(secret),
            directories=(Directory(id="d", last_broker_epoch=BrokerEpoch(0)),),
            peer_key=None if key is None else key.public,
        )
        result = await self.coordination.transact((), (Put(self.keys.broker(broker), encode(registration)),))
        return BrokerEpoch(result.revision)

    async def start(self, number: int, *, cluster_id: str = CLUSTER_ID, older: bool = False) -> Broker:
        """Start a broker that serves its peers, with the epoch of its first registration.

        A broker of an older release has a secret and no key.
        """
        broker, secret = BrokerId(number), f"secret of {number}"
        key = None if older else BrokerKey(secret)
        bound = BoundSocket("peer", "127.0.0.1", 0)
        epoch = await self.register(broker, str(bound), secret, key=key)
        mirror = Mirror(self.coordination, self.keys)
        await mirror.load()
        own = PeerIdentity(cluster_id, broker, secret, lambda: epoch, lambda: mirror.metadata.revision)
        replicas = Replicas()
        side = PeerSide(
            Peers(own, lambda: mirror.metadata.brokers, SystemClock(), None, maker(own, key)),
            mirror,
            replicas,
            replicas.log_ends,
            replicas.promises,
            replicas.voters,
            replicas.digest,
            replicas.cleaning,
            replicas.positions,
            replicas.report,
        )
        telemetry = Telemetry()
        application = Application(
            PEER_ROUTES,
            PeerCalls(
                side,
                QuotaExchange(
                    QuotaView(
                        mirror.metadata,
                        SystemClock().monotonic,
                        QuotaMetrics(lambda *_: None, lambda _: None),
                    ),
                    side.peers,
                    mirror,
                    SystemClock(),
                ),
                replicas.transactions,  # type: ignore[arg-type]
            ).endpoints(),
            SystemClock(),
            RequestMetrics(telemetry, access_log=False),
            FailureLog(telemetry.log, "life"),
            BodyBudget(BodyLimits()),
            gate=PeerGate(side),
        )
        listener = Http2Listener(application, bound, connections_max=64)
        await listener.start()
        mirroring = asyncio.get_running_loop().create_task(mirror.run())
        started = Broker(broker, secret, key, epoch, side, replicas, listener, bound, mirroring)
        self.brokers.append(started)
        return started

    async def settle(self) -> None:
        """Wait until every mirror has the store's current revision."""
        result = await self.coordination.transact((), (Put(self.keys.cluster, _cluster()),))
        for broker in self.brokers:
            await broker.side.wait_for(result.revision)

    async def close(self) -> None:
        """Stop all brokers."""
        for broker in self.brokers:
            await broker.peers.close()
            await broker.listener.stop(2)
            broker.mirroring.cancel()
            await asyncio.wait({broker.mirroring})


def maker(own: PeerIdentity, key: BrokerKey | None) -> ProofMaker | None:
    """Return the proof maker of an identity, or None for a broker of an older release."""
    return None if key is None else ProofMaker(key, own.cluster_id, own.broker, own.epoch, SystemClock())


def _cluster() -> bytes:
    return encode(
        msgspec.convert({"cluster_id": CLUSTER_ID, "feature_level": 1, "created_us": 0}, ClusterRecord)
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Yield a store without brokers."""
    coordination = await EmbeddedCoordination.open(tmp_path / "coordination.sqlite", SystemClock())
    made = World(coordination)
    yield made
    await made.close()
    await coordination.close()


@pytest.fixture
async def pair(world: World) -> tuple[Broker, Broker]:
    """Return two brokers whose mirrors have each other's registration."""
    first, second = await world.start(1), await world.start(2)
    await world.settle()
    return first, second
