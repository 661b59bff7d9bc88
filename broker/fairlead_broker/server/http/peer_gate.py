"""Admission to the peer listener, which serves only brokers of this cluster in their newest incarnation.

Callers: ``application`` before any endpoint of the peer listener runs. The identity in a peer's headers is compared
with the peer's registration, which contains the key of its proofs or, from an older release, the hash of its secret.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from typing import Final

import structlog

from fairlead_api.excerpts import shown
from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_api.problems import ProblemError
from fairlead_api.routes.definitions import Listener
from fairlead_broker.coordination.protocol import CoordinationUnavailable
from fairlead_broker.peers import identity
from fairlead_broker.peers.messages import PeerIncarnation
from fairlead_broker.peers.proofs import ProofChecker, ProofRefused
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide
from fairlead_broker.server.http.asgi import HeaderList
from fairlead_broker.server.http.call import Call

MIRROR_SECONDS_MAX: Final = 1.0
"""Maximum time in seconds for which a call from an unknown peer waits until the mirror has the registration."""
NUMBER_MAX: Final = 2**63 - 1
REASONS_MAX: Final = 1000
"""Maximum number of refusals that are remembered so that each is logged only once."""

_log = structlog.get_logger("fairlead.peers")


class PeerGate:
    """Authenticates peers, records the revisions of their mirrors, and adds identity headers to answers."""

    def __init__(self, side: PeerSide) -> None:
        self._side = side
        self._own = side.peers.own
        self._proofs = ProofChecker(self._own.cluster_id, self._own.broker)
        self._logged: set[tuple[BrokerId, str]] = set()

    def stamp(self) -> HeaderList:
        """Return the headers of every answer: the identity of this broker and the revision of its mirror."""
        return [(name.encode(), value.encode()) for name, value in self._own.headers().items()]

    async def admit(self, call: Call) -> None:
        """Authenticate the peer and set ``call.peer``. Raises peer_refused, or stale_broker_epoch for an old epoch."""
        cluster = call.header_text(identity.CLUSTER_ID.encode())
        broker = BrokerId(_number(call, identity.BROKER_ID))
        epoch = BrokerEpoch(_number(call, identity.BROKER_EPOCH))
        revision = Revision(_number(call, identity.MIRROR_REVISION))
        if cluster != self._own.cluster_id:
            raise self._refused(
                broker, f"it belongs to cluster {shown(cluster)}, this cluster is {self._own.cluster_id}"
            )
        registered = await self._registration(broker, epoch)
        if registered is None:
            raise self._refused(broker, "it is not registered in this cluster")
        if BrokerEpoch(registered.create_revision) != epoch:
            raise _stale(broker, epoch, BrokerEpoch(registered.create_revision))
        self._authenticate(call, broker, epoch, registered.value)
        call.peer = PeerIncarnation(broker, epoch)
        self._side.peers.note_revision(broker, revision)
        if call.matched_route.listener is Listener.DATA:
            await self._catch_up(revision)

    def _authenticate(
        self, call: Call, broker: BrokerId, epoch: BrokerEpoch, registered: BrokerRegistration
    ) -> None:
        """Raise peer_refused unless the call proves that the registered incarnation made it (rule A20)."""
        if registered.peer_key is None:
            secret = call.header_text(identity.PEER_SECRET.encode())
            if not hmac.compare_digest(identity.secret_hash(secret), registered.peer_secret_hash):
                raise self._refused(broker, "its secret does not match its registration")
            return
        proof = call.header_text(identity.BROKER_PROOF.encode())
        try:
            self._proofs.check(proof, broker, epoch, registered.peer_key)
        except ProofRefused as refused:
            raise self._refused(broker, str(refused)) from refused

    async def _registration(
        self, broker: BrokerId, epoch: BrokerEpoch
    ) -> Versioned[BrokerRegistration] | None:
        """Return the newest known registration of a broker.

        If the registration is older than the broker's epoch, the method waits for the mirror first.
        """
        registered = self._side.registrations.get(broker)
        if registered is None or registered.create_revision < epoch:
            try:
                async with asyncio.timeout(MIRROR_SECONDS_MAX):
                    await self._side.wait_for(Revision(epoch))
            except (TimeoutError, CoordinationUnavailable):
                return registered
            registered = self._side.registrations.get(broker)
        return registered

    async def _catch_up(self, revision: Revision) -> None:
        """Wait until the mirror has reached the revision of the forwarding peer, which may know a newer leader."""
        if self._side.mirror.metadata.revision < revision:
            with suppress(TimeoutError, CoordinationUnavailable):
                async with asyncio.timeout(MIRROR_SECONDS_MAX):
                    await self._side.wait_for(revision)

    def _refused(self, broker: BrokerId, reason: str) -> ProblemError:
        if (broker, reason) not in self._logged and len(self._logged) < REASONS_MAX:
            self._logged.add((broker, reason))
            _log.warning("call from a peer refused", peer=broker, reason=reason)
        return ProblemError(
            "peer_refused",
            f"broker {broker} may not call broker {self._own.broker}: {reason}",
            data={"broker": broker},
        )


def _number(call: Call, name: str) -> int:
    text = call.header_text(name.encode())
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > NUMBER_MAX:
        raise ProblemError(
            "peer_refused", f"header {name} of a call between brokers is {shown(text)}, not a number"
        )
    return int(text)


def _stale(broker: BrokerId, claimed: BrokerEpoch, registered: BrokerEpoch) -> ProblemError:
    return ProblemError(
        "stale_broker_epoch",
        f"broker {broker} is registered in epoch {registered}, the call was made in epoch {claimed}",
        data={"broker": broker, "broker_epoch": registered},
    )
