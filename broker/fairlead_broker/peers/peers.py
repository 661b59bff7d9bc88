"""Calls to other brokers, with one attempt each, over HTTP/2.

The runtime (fetching, progress, log ends) and the server (forwarding) use this module. Only this package of the broker
uses pyreqwest, whose exceptions are translated here. If a peer does not answer, a call raises `PeerUnavailable`, which
states whether the request may have been executed. The caller decides whether to retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Final

import pyreqwest.client
import pyreqwest.exceptions

from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.cleaning import ReplicaCleaning
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.operations import BrokerReport
from fairlead_api.identifiers import BrokerId, ProducerId, Revision, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.peers import identity, messages
from fairlead_broker.peers.cleaning import CleaningRequest
from fairlead_broker.peers.digests import DigestRequest, RangeDigest
from fairlead_broker.peers.http_clients import cancellable, client_builder, problem_in
from fairlead_broker.peers.http_threads import rest_before_exit
from fairlead_broker.peers.identity import PeerIdentity
from fairlead_broker.peers.messages import (
    LogEnd,
    LogEndsAnswer,
    LogEndsRequest,
    PeerPartition,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchRequest,
)
from fairlead_broker.peers.positions import PositionFound, PositionsAnswer, PositionsRequest
from fairlead_broker.peers.promises import PromiseAsked, PromiseGiven, PromisesAnswer, PromisesRequest
from fairlead_broker.peers.proofs import ProofMaker
from fairlead_broker.peers.transaction_messages import (
    EndsAnswer,
    EndsRequest,
    LookRequest,
    OpenAnswer,
    OpenAt,
    OpenProducersAnswer,
    OpenProducersRequest,
    OpenRequest,
)
from fairlead_broker.peers.usage import UsageAnswer, UsageRequest
from fairlead_broker.peers.voters import PartitionVoters, VotersAnswer, VotersRequest
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration, BrokerState

CONNECT_SECONDS_MAX: Final = 1.0
ANSWER_MARGIN_SECONDS: Final = 3.0
"""Number of seconds that a peer may take in addition to the requested wait."""
SHORT_CALL_SECONDS_MAX: Final = 3.0
POSITIONS_SECONDS_MAX: Final = 10.0
"""Maximum number of seconds that a leader takes to look up a time in a thousand logs."""
KEEP_ALIVE: Final = timedelta(seconds=2)
STREAM_WINDOW_BYTES: Final = 16 << 20

RENEWED_SECONDS: Final = 60.0
"""Seconds after which connections with replaced certificates are closed. Every call to a peer ends within this time."""
TIMER_SECONDS_MAX: Final = 0.1
"""Maximum difference in seconds between the two clocks that measure the duration of a request."""

REPLICA_FETCH_PATH: Final = "/peer/v1/replica-fetch"
PROGRESS_PATH: Final = "/peer/v1/progress"
LOG_ENDS_PATH: Final = "/peer/v1/log-ends"
PROMISES_PATH: Final = "/peer/v1/promises"
VOTERS_PATH: Final = "/peer/v1/voters"
DIGEST_PATH: Final = "/peer/v1/digest"
CLEANING_PATH: Final = "/peer/v1/cleaning"
POSITIONS_PATH: Final = "/peer/v1/positions"
USAGE_PATH: Final = "/peer/v1/usage"
TRANSACTION_ENDS_PATH: Final = "/peer/v1/transaction-ends"
TRANSACTION_LOOKS_PATH: Final = "/peer/v1/transaction-looks"
OPEN_TRANSACTIONS_PATH: Final = "/peer/v1/open-transactions"
REPORT_PATH: Final = "/peer/v1/report"
OPEN_PRODUCERS_PATH: Final = "/peer/v1/open-producers"
ENDS_SECONDS_MAX: Final = 5.0
"""Timeout in seconds of a request that reports commits to a leader, which answers once their markers are committed."""
DIGEST_SECONDS_MAX: Final = 10.0
"""Timeout in seconds of a digest request, for which the peer reads a piece of a log from the disk."""
NEWEST_SECONDS_MAX: Final = 25.0
"""Timeout in seconds of a request for the digest of the newest records, for which the peer reads a whole log twice."""


class PeerUnavailable(Exception):
    """Raised when a broker does not answer.

    `sent`: the request may have reached the broker. `timed_out`: the answer took too long. `expected`: one of the two
    brokers is stopping, so no warning is logged.
    """

    def __init__(
        self, broker: BrokerId, reason: str, *, sent: bool, timed_out: bool = False, expected: bool = False
    ) -> None:
        super().__init__(f"broker {broker} does not answer: {reason}")
        self.broker = broker
        self.reason = reason
        self.sent = sent
        self.timed_out = timed_out
        self.expected = expected


@dataclass(frozen=True, slots=True, repr=False)
class PeerTls:
    """Material for calls to peers with TLS. The class has no `repr`, because it contains a private key."""

    ca_pem: bytes
    """Certificates of the authorities that sign brokers."""
    identity_pem: bytes
    """Key and certificate chain that this broker presents."""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Answer from a peer with any status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


class Peers:
    """This broker's connections to all other brokers. A `Peers` must be created on the event loop that uses it."""

    def __init__(
        self,
        own: PeerIdentity,
        brokers: Callable[[], Mapping[BrokerId, Versioned[BrokerRegistration]]],
        clock: Clock,
        tls: PeerTls | None = None,
        proofs: ProofMaker | None = None,
    ) -> None:
        """`brokers` returns the current registrations, which contain the addresses.

        `proofs` makes the proofs for brokers that check them. `tls` is the material for peers whose listeners use TLS.
        """
        self.own = own
        self._proofs = proofs
        self._brokers = brokers
        self._clock = clock
        self._seen: dict[BrokerId, Revision] = {}
        self._closing: set[asyncio.Task[None]] = set()
        """Tasks that close replaced connections."""
        self._forwarding: pyreqwest.client.Client | None = _client(tls)
        self._replication: pyreqwest.client.Client | None = _client(tls)
        """Client for replication. Replication has separate connections, because forwarded long polls may occupy all
        streams of a connection and must not delay replication."""

    def seen_revision(self, broker: BrokerId) -> Revision:
        """Return the highest mirror revision that a peer has sent in a request or an answer.

        The result is 0 before the peer's first message.
        """
        return self._seen.get(broker, Revision(0))

    def note_revision(self, broker: BrokerId, revision: Revision) -> None:
        """Record the revision of a peer's mirror if it is the highest revision so far."""
        if revision > self.seen_revision(broker):
            self._seen[broker] = revision

    async def call(
        self,
        broker: BrokerId,
        method: str,
        path: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | Sequence[Buffer] = b"",
        timeout_seconds: float,
    ) -> PeerAnswer:
        """Send one request to a broker's peer listener, and return its answer, which may be a problem.

        Raises `PeerUnavailable`. After a cancellation the request runs at the peer until `timeout_seconds`, because
        pyreqwest does not reset the stream.
        """
        return await self._send(self._forwarding, broker, method, path, headers, body, timeout_seconds)

    async def _send(
        self,
        client: pyreqwest.client.Client | None,
        broker: BrokerId,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | Sequence[Buffer],
        timeout_seconds: float,
    ) -> PeerAnswer:
        if client is None:
            raise PeerUnavailable(broker, "this broker is stopping", sent=False, expected=True)
        builder = client.request(method, self._url(broker) + path)
        builder = builder.timeout(timedelta(seconds=timeout_seconds))
        # The headers are added one by one, because the `headers` method accepts each name only once.
        for name, value in (*self.own.headers().items(), self.evidence(broker), *headers):
            builder = builder.header(name, value)
        content = body if isinstance(body, bytes) else b"".join(body)
        if content:
            builder = builder.body_bytes(content)
        began = self._clock.monotonic()
        try:
            with cancellable():
                response = await builder.build().send()
                received = await response.bytes()
        except pyreqwest.exceptions.RequestError as error:
            seconds_left = began + timeout_seconds - self._clock.monotonic()
            unavailable = _unavailable(broker, error, seconds_left)
            unavailable.expected = self._has_left(broker)
            raise unavailable from error
        answer = PeerAnswer(response.status, dict(response.headers), memoryview(received))
        self._check_origin(broker, answer)
        return answer

    async def replica_fetch(
        self, broker: BrokerId, request: ReplicaFetchRequest, timeout_seconds: float | None = None
    ) -> ReplicaFetchAnswer:
        """Fetch from a leader. Raises `PeerUnavailable`, and `ProblemError` if the leader refuses the whole request."""
        if timeout_seconds is None:
            timeout_seconds = request.max_wait_ms / 1000 + ANSWER_MARGIN_SECONDS
        answer = await self._post(broker, REPLICA_FETCH_PATH, messages.encode(request), timeout_seconds)
        return messages.decode_answer(answer.body)

    async def progress(self, broker: BrokerId, request: ProgressRequest) -> None:
        """Report durable offsets to a leader. Raises like `replica_fetch`."""
        await self._post(broker, PROGRESS_PATH, messages.encode(request), SHORT_CALL_SECONDS_MAX)

    async def log_ends(
        self, broker: BrokerId, partitions: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, LogEnd]:
        """Request the log ends of a broker's replicas. Missing replicas are left out. Raises like `replica_fetch`."""
        request = LogEndsRequest(
            partitions=[PeerPartition(topic_id=key.topic_id, partition=key.partition) for key in partitions]
        )
        answer = await self._post(broker, LOG_ENDS_PATH, messages.encode(request), SHORT_CALL_SECONDS_MAX)
        return {end.key: end for end in messages.decode(LogEndsAnswer, answer.body).ends}

    async def promises(self, broker: BrokerId, asked: Sequence[PromiseAsked]) -> list[PromiseGiven]:
        """Request the promises of a broker's replicas for vacancies. Raises like `replica_fetch`."""
        body = messages.encode(PromisesRequest(partitions=list(asked)))
        answer = await self._post(broker, PROMISES_PATH, body, SHORT_CALL_SECONDS_MAX)
        return messages.decode(PromisesAnswer, answer.body).promises

    async def voters(self, broker: BrokerId, partitions: Sequence[TopicIdPartition]) -> list[PartitionVoters]:
        """Request the voters of partitions that a broker leads. Raises like `replica_fetch`."""
        request = VotersRequest(
            partitions=[PeerPartition(topic_id=key.topic_id, partition=key.partition) for key in partitions]
        )
        answer = await self._post(broker, VOTERS_PATH, messages.encode(request), SHORT_CALL_SECONDS_MAX)
        return messages.decode(VotersAnswer, answer.body).partitions

    async def digest(self, broker: BrokerId, request: DigestRequest) -> RangeDigest:
        """Request the checksum of a range of a broker's copy. Raises like `replica_fetch`."""
        seconds_max = NEWEST_SECONDS_MAX if request.newest else DIGEST_SECONDS_MAX
        answer = await self._post(broker, DIGEST_PATH, messages.encode(request), seconds_max)
        return messages.decode(RangeDigest, answer.body)

    async def cleaning(self, broker: BrokerId, request: CleaningRequest) -> ReplicaCleaning:
        """Request the state of a replica's cleaning, or a cleaning round. Raises like `replica_fetch`."""
        answer = await self._post(broker, CLEANING_PATH, messages.encode(request), DIGEST_SECONDS_MAX)
        return messages.decode(ReplicaCleaning, answer.body)

    async def positions(
        self, broker: BrokerId, request: PositionsRequest, seconds_max: float = POSITIONS_SECONDS_MAX
    ) -> list[PositionFound]:
        """Request positions from a leader. Returns one entry per partition, in order. Raises like `replica_fetch`."""
        answer = await self._post(broker, POSITIONS_PATH, messages.encode(request), seconds_max)
        return messages.decode(PositionsAnswer, answer.body).partitions

    async def transaction_ends(self, broker: BrokerId, request: EndsRequest) -> list[bool]:
        """Report commits to a leader. Returns whether each marker is committed. Raises like `replica_fetch`."""
        answer = await self._post(broker, TRANSACTION_ENDS_PATH, messages.encode(request), ENDS_SECONDS_MAX)
        return messages.decode(EndsAnswer, answer.body).confirmed

    async def transaction_looks(self, broker: BrokerId, producer_ids: Sequence[ProducerId]) -> None:
        """Report to a broker that the records of producers have changed. Raises like `replica_fetch`."""
        body = messages.encode(LookRequest(producer_ids=list(producer_ids)))
        await self._post(broker, TRANSACTION_LOOKS_PATH, body, SHORT_CALL_SECONDS_MAX)

    async def open_transactions(self, broker: BrokerId, producer_id: ProducerId) -> list[OpenAt]:
        """Return the partitions led by a broker with open transactions of a producer. Raises like `replica_fetch`."""
        body = messages.encode(OpenRequest(producer_id=producer_id))
        answer = await self._post(broker, OPEN_TRANSACTIONS_PATH, body, SHORT_CALL_SECONDS_MAX)
        return messages.decode(OpenAnswer, answer.body).open_at

    async def open_producers(self, broker: BrokerId, producer_ids: Sequence[ProducerId]) -> list[ProducerId]:
        """Return the given producers that have open transactions at a broker. Raises like `replica_fetch`."""
        body = messages.encode(OpenProducersRequest(producer_ids=list(producer_ids)))
        answer = await self._post(broker, OPEN_PRODUCERS_PATH, body, SHORT_CALL_SECONDS_MAX)
        return messages.decode(OpenProducersAnswer, answer.body).producer_ids

    async def usage(self, broker: BrokerId, request: UsageRequest) -> UsageAnswer:
        """Report the use of limits to the controller. Raises like `replica_fetch`."""
        answer = await self._post(broker, USAGE_PATH, messages.encode(request), SHORT_CALL_SECONDS_MAX)
        return messages.decode(UsageAnswer, answer.body)

    async def report(self, broker: BrokerId) -> BrokerReport:
        """Request a broker's report about its disk and its Kafka listener. Raises like `replica_fetch`."""
        answer = await self._post(broker, REPORT_PATH, b"{}", SHORT_CALL_SECONDS_MAX)
        return messages.decode(BrokerReport, answer.body)

    async def renew(self, tls: PeerTls) -> None:
        """Use new TLS material for new connections (rule T9).

        Calls in progress have a minute to end on the previous connections.
        """
        if self._forwarding is None:
            return
        old = (self._forwarding, self._replication)
        self._forwarding, self._replication = _client(tls), _client(tls)
        closing = asyncio.get_running_loop().create_task(_close_later(old), name="peers-renewed")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection, which makes calls in progress fail."""
        clients = (self._forwarding, self._replication)
        self._forwarding = self._replication = None
        closing = list(self._closing)
        for each in closing:
            each.cancel()
        if closing:
            await asyncio.wait(closing)
        for client in clients:
            if client is not None:
                await client.close()

    async def _post(self, broker: BrokerId, path: str, body: bytes, timeout_seconds: float) -> PeerAnswer:
        headers = (("content-type", JSON),)
        client = self._replication
        answer = await self._send(client, broker, "POST", path, headers, body, timeout_seconds)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise problem_of(answer)
        return answer

    def _has_left(self, broker: BrokerId) -> bool:
        """Return whether a missing answer is expected, because the broker or this broker is stopping."""
        return self._is_stopping(broker) or self._is_stopping(self.own.broker)

    def _is_stopping(self, broker: BrokerId) -> bool:
        registered = self._brokers().get(broker)
        return registered is None or registered.value.state is BrokerState.STOPPING

    def _url(self, broker: BrokerId) -> str:
        addresses = self._registered(broker).addresses
        return f"{addresses.peer_scheme}://{addresses.peer}"

    def _registered(self, broker: BrokerId) -> BrokerRegistration:
        registered = self._brokers().get(broker)
        if registered is None:
            raise PeerUnavailable(broker, "it is not registered", sent=False, expected=True)
        return registered.value

    def evidence(self, broker: BrokerId) -> tuple[str, str]:
        """Return the name and value of the header that authenticates this broker to another broker (rule A20).

        A broker of an older release has registered no key, and expects the secret. Raises `PeerUnavailable` for an
        unknown broker.
        """
        registered = self._registered(broker)
        if registered.peer_key is None or self._proofs is None:
            return identity.PEER_SECRET, self.own.secret
        return identity.BROKER_PROOF, self._proofs.proof(broker)

    def _check_origin(self, broker: BrokerId, answer: PeerAnswer) -> None:
        """Record the peer's revision. An answer from another cluster or broker at the peer's address is refused."""
        headers = answer.headers
        if headers.get(identity.CLUSTER_ID) != self.own.cluster_id or headers.get(identity.BROKER_ID) != str(
            broker
        ):
            who = f"broker {headers.get(identity.BROKER_ID)} of cluster {headers.get(identity.CLUSTER_ID)}"
            raise PeerUnavailable(broker, f"another broker ({who}) answers at its address", sent=True)
        revision = headers.get(identity.MIRROR_REVISION, "")
        if revision.isdigit():
            self.note_revision(broker, Revision(int(revision)))


def problem_of(answer: PeerAnswer) -> ProblemError:
    """Return the problem in a peer's answer."""
    return problem_in("a peer", answer.status, answer.body)


async def _close_later(clients: Iterable[pyreqwest.client.Client | None]) -> None:
    """Close clients once their calls have had time to end, or immediately after a cancellation."""
    try:
        await asyncio.sleep(RENEWED_SECONDS)  # noqa: TID251 - no event announces the last answer of a client
    finally:
        for client in clients:
            if client is not None:
                await client.close()


def _client(tls: PeerTls | None) -> pyreqwest.client.Client:
    builder = client_builder(
        "fairlead-broker",
        connect_seconds_max=CONNECT_SECONDS_MAX,
        keep_alive=KEEP_ALIVE,
        stream_window_bytes=STREAM_WINDOW_BYTES,
    )
    if tls is not None:
        builder = builder.add_root_certificate_pem(tls.ca_pem).identity_pem(tls.identity_pem)
    return builder.build()


def tls_fault(authorities: bytes | None, identity: bytes | None) -> str | None:
    """Return the reason why TLS refuses authorities, or a key with its certificate; None if TLS accepts them.

    Calls to brokers use the same TLS library as the HTTP server; it refuses more than `cryptography` does, such as
    unknown critical extensions.
    """
    rest_before_exit()
    builder = pyreqwest.client.ClientBuilder().no_proxy()
    try:
        if authorities is not None:
            builder = builder.add_root_certificate_pem(authorities)
        if identity is not None:
            builder = builder.identity_pem(identity)
        builder.build()
    except (ValueError, pyreqwest.exceptions.BuilderError) as error:
        return str(error)
    return None


def _unavailable(
    broker: BrokerId, error: pyreqwest.exceptions.RequestError, seconds_left: float
) -> PeerUnavailable:
    """Translate an error; `seconds_left` is the remaining time of the request.

    pyreqwest also raises ConnectTimeoutError when the whole request times out, regardless of its progress. Only a
    ConnectTimeoutError before the timeout of the request proves, like a refused connection, that no byte was sent. A
    connection that broke before the answer and a connection that was never made can raise the same error; the causes of
    the error distinguish the two cases.
    """
    causes = (error.details or {}).get("causes") or []
    reason = causes[-1]["message"] if causes else error.message
    never_connected = any(cause["message"] == "client error (Connect)" for cause in causes)
    in_time = isinstance(error, pyreqwest.exceptions.ConnectError) or (
        isinstance(error, pyreqwest.exceptions.ConnectTimeoutError) and seconds_left > TIMER_SECONDS_MAX
    )
    timed_out = isinstance(error, pyreqwest.exceptions.RequestTimeoutError)
    reason = f"{type(error).__name__}: {reason}"
    return PeerUnavailable(broker, reason, sent=not (never_connected and in_time), timed_out=timed_out)
