"""Calls that only brokers make: replica fetches, progress reports, log ends, digests, cleaning and positions.

Callers: ``application`` of the peer listener, whose gate has identified the calling broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead_api.access_needs import BROKER
from fairlead_api.bodies.media_types import FRAMES, JSON
from fairlead_api.routes.definitions import AnswerForm, Listener, Route
from fairlead_broker.peers import messages
from fairlead_broker.peers.cleaning import CleaningRequest
from fairlead_broker.peers.digests import DigestRequest
from fairlead_broker.peers.messages import (
    LogEndsAnswer,
    LogEndsRequest,
    PeerIncarnation,
    ProgressRequest,
    ReplicaFetchRequest,
)
from fairlead_broker.peers.peers import (
    CLEANING_PATH,
    DIGEST_PATH,
    LOG_ENDS_PATH,
    OPEN_PRODUCERS_PATH,
    OPEN_TRANSACTIONS_PATH,
    POSITIONS_PATH,
    PROGRESS_PATH,
    PROMISES_PATH,
    REPLICA_FETCH_PATH,
    REPORT_PATH,
    TRANSACTION_ENDS_PATH,
    TRANSACTION_LOOKS_PATH,
    USAGE_PATH,
    VOTERS_PATH,
)
from fairlead_broker.peers.positions import PositionsAnswer, PositionsRequest
from fairlead_broker.peers.promises import PromisesAnswer, PromisesRequest
from fairlead_broker.peers.transaction_messages import (
    EndsAnswer,
    EndsRequest,
    LookRequest,
    OpenAnswer,
    OpenProducersAnswer,
    OpenProducersRequest,
    OpenRequest,
)
from fairlead_broker.peers.usage import UsageRequest
from fairlead_broker.peers.voters import VotersAnswer, VotersRequest
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide
from fairlead_broker.runtime.quota_exchange import QuotaExchange
from fairlead_broker.runtime.transactions.transactions import Transactions
from fairlead_broker.server.http.call import Call, Endpoint
from fairlead_broker.server.http.disconnect import unless_gone

REQUEST_BYTES_MAX: Final = 64 << 20
"""Maximum number of bytes of a peer call's body: enough for the maximum number of partitions in a message."""


def _route(name: str, path: str, summary: str) -> Route:
    return Route(
        name=name,
        method="POST",
        path=path,
        summary=summary,
        access=BROKER,
        listener=Listener.PEER,
        answers=(AnswerForm(status=200, explanation="the requested data"),),
    )


PEER_ROUTES: Final = (
    _route("replica_fetch", REPLICA_FETCH_PATH, "Copy records to a follower"),
    _route("replica_progress", PROGRESS_PATH, "Report the synced offsets of a follower to its leader"),
    _route("log_ends", LOG_ENDS_PATH, "Return the ends of a broker's logs"),
    _route("promises", PROMISES_PATH, "Return the promises of a broker's replicas for vacancies"),
    _route("voters", VOTERS_PATH, "Return the voters of partitions that a broker leads"),
    _route("replica_digest", DIGEST_PATH, "Return the digest over a range of a replica"),
    _route("replica_cleaning", CLEANING_PATH, "Return the state of a replica's cleaning, and begin a round"),
    _route("usage", USAGE_PATH, "Report the use of limits to the controller"),
    _route("transaction_ends", TRANSACTION_ENDS_PATH, "Report committed transactions to a leader"),
    _route(
        "transaction_looks", TRANSACTION_LOOKS_PATH, "Notify a broker that records of producers have changed"
    ),
    _route(
        "open_transactions", OPEN_TRANSACTIONS_PATH, "Return the open transactions of a producer on a broker"
    ),
    _route("open_producers", OPEN_PRODUCERS_PATH, "Return the producers with open transactions on a broker"),
    _route("positions", POSITIONS_PATH, "Return positions in partitions that a broker leads"),
    _route("report", REPORT_PATH, "Return the disk space and the Kafka listener of a broker"),
)


class PeerCalls:
    """Endpoints of the calls between brokers."""

    def __init__(self, side: PeerSide, quotas: QuotaExchange, transactions: Transactions) -> None:
        self._side = side
        self._quotas = quotas
        self._transactions = transactions

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "replica_fetch": self.replica_fetch,
            "replica_progress": self.replica_progress,
            "log_ends": self.log_ends,
            "promises": self.promises,
            "voters": self.voters,
            "replica_digest": self.replica_digest,
            "replica_cleaning": self.replica_cleaning,
            "positions": self.positions,
            "report": self.report,
            "usage": self.usage,
            "transaction_ends": self.transaction_ends,
            "transaction_looks": self.transaction_looks,
            "open_transactions": self.open_transactions,
            "open_producers": self.open_producers,
        }

    async def replica_fetch(self, call: Call) -> None:
        """``POST /peer/v1/replica-fetch``: a long poll, answered in frames."""
        request = messages.decode(ReplicaFetchRequest, await call.body(REQUEST_BYTES_MAX))
        call.body_reader.release()
        answer = await unless_gone(call.receive, self._side.followers.fetch(_peer(call), request))
        await call.answer_parts(200, [(b"content-type", FRAMES.encode())], messages.encode_answer(answer))

    async def replica_progress(self, call: Call) -> None:
        """``POST /peer/v1/progress``."""
        request = messages.decode(ProgressRequest, await call.body(REQUEST_BYTES_MAX))
        self._side.followers.progress(_peer(call), request)
        await call.answer(204, [])

    async def log_ends(self, call: Call) -> None:
        """``POST /peer/v1/log-ends``."""
        request = messages.decode(LogEndsRequest, await call.body(REQUEST_BYTES_MAX))
        ends = self._side.log_ends([wanted.key for wanted in request.partitions])
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(LogEndsAnswer(ends=ends)))

    async def promises(self, call: Call) -> None:
        """``POST /peer/v1/promises``."""
        request = messages.decode(PromisesRequest, await call.body(REQUEST_BYTES_MAX))
        answer = PromisesAnswer(promises=await self._side.promises(request.partitions))
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def voters(self, call: Call) -> None:
        """``POST /peer/v1/voters``."""
        request = messages.decode(VotersRequest, await call.body(REQUEST_BYTES_MAX))
        answer = VotersAnswer(partitions=self._side.voters([wanted.key for wanted in request.partitions]))
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def replica_digest(self, call: Call) -> None:
        """``POST /peer/v1/digest``."""
        request = messages.decode(DigestRequest, await call.body(REQUEST_BYTES_MAX))
        answer = await self._side.digest(request)
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def replica_cleaning(self, call: Call) -> None:
        """``POST /peer/v1/cleaning``."""
        request = messages.decode(CleaningRequest, await call.body(REQUEST_BYTES_MAX))
        answer = await self._side.cleaning(request)
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def positions(self, call: Call) -> None:
        """``POST /peer/v1/positions``."""
        request = messages.decode(PositionsRequest, await call.body(REQUEST_BYTES_MAX))
        answer = PositionsAnswer(partitions=await self._side.positions(request.partitions))
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def report(self, call: Call) -> None:
        """``POST /peer/v1/report``."""
        await call.body(REQUEST_BYTES_MAX)
        answer = messages.encode(await self._side.report())
        await call.answer(200, [(b"content-type", JSON.encode())], answer)

    async def transaction_ends(self, call: Call) -> None:
        """``POST /peer/v1/transaction-ends``."""
        request = messages.decode(EndsRequest, await call.body(REQUEST_BYTES_MAX))
        answer = EndsAnswer(confirmed=await self._transactions.ends.end_here(request.ends))
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def transaction_looks(self, call: Call) -> None:
        """``POST /peer/v1/transaction-looks``."""
        request = messages.decode(LookRequest, await call.body(REQUEST_BYTES_MAX))
        self._transactions.looks.hint(request.producer_ids)
        await call.answer(204, [])

    async def open_transactions(self, call: Call) -> None:
        """``POST /peer/v1/open-transactions``."""
        request = messages.decode(OpenRequest, await call.body(REQUEST_BYTES_MAX))
        answer = OpenAnswer(open_at=self._transactions.looks.open_at(request.producer_id))
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def open_producers(self, call: Call) -> None:
        """``POST /peer/v1/open-producers``."""
        request = messages.decode(OpenProducersRequest, await call.body(REQUEST_BYTES_MAX))
        opened = self._transactions.looks.opened(request.producer_ids)
        answer = OpenProducersAnswer(producer_ids=sorted(opened))
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))

    async def usage(self, call: Call) -> None:
        """``POST /peer/v1/usage``."""
        request = messages.decode(UsageRequest, await call.body(REQUEST_BYTES_MAX))
        answer = self._quotas.answer(_peer(call).broker, request.uses)
        await call.answer(200, [(b"content-type", JSON.encode())], messages.encode(answer))


def _peer(call: Call) -> PeerIncarnation:
    assert call.peer is not None, "the gate of the peer listener runs before its endpoints"
    return call.peer
