"""The peer listener: it serves only registered brokers with a proof for this broker (proof V12)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from broker_kit import Calls
from certificate_kit import Authority
from cluster_kit import Cluster
from fairlead_api.access_needs import Kind
from fairlead_api.identifiers import BrokerId
from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.clock import SystemClock
from fairlead_broker.peers.forwarded_callers import FORWARDED_CALLER
from fairlead_broker.peers.identity import BROKER_PROOF, PEER_SECRET
from fairlead_broker.peers.peers import LOG_ENDS_PATH
from fairlead_broker.peers.proofs import VALID_SECONDS, ProofMaker
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES
from security_kit import Secured, path_of

OWN_SECONDS_MAX: Final = 120
"""Maximum age of a proof that the test takes from a running broker."""


class LateClock(SystemClock):
    """System clock that the test moves ahead."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def monotonic(self) -> float:
        """Return the monotonic time in seconds."""
        return super().monotonic() + self.ahead_seconds


def later_proof(cluster: Cluster, sender: int, target: int) -> dict[str, str]:
    """Return the header with the proof that a broker would send to another broker after the lifetime of a proof."""
    peers, clock = cluster.broker(sender).peer_side.peers, LateClock()
    assert peers._proofs is not None
    maker = ProofMaker(peers._proofs._key, peers.own.cluster_id, peers.own.broker, peers.own.epoch, clock)
    clock.ahead_seconds = VALID_SECONDS + OWN_SECONDS_MAX
    return {BROKER_PROOF: maker.proof(BrokerId(target))}


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_route_of_the_peer_listener_is_open(tmp_path: Path, scheme: str) -> None:
    """Every route is refused without a valid proof of the calling broker's newest incarnation, with and without TLS.

    Refused are calls without a proof, with the secret of older releases, with a proof from or for another broker, with
    a proof of a previous incarnation, and with a proof that is much older than the newest proof. The certificate of a
    broker replaces no proof.
    """
    authority = Authority.make()
    own = authority.issue()
    settings = {"peer_tls": own.write(tmp_path / "tls", authority)} if scheme == "https" else {}
    pems = (authority.pem, None, own.key_pem + own.pem) if settings else (None, None, None)
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3, **settings)
        sender, other = (cluster.broker(number).peer_side.peers for number in (1, 3))
        target = cluster.brokers[2].addresses.peer
        assert target is not None
        named, previous = sender.own.headers(), other.own.headers()
        begun = {**named, **dict([sender.evidence(BrokerId(2))])}
        ended = dict([other.evidence(BrokerId(2))])
        await cluster.stop(3)
        await cluster.start(3, **settings)
        restarted = cluster.broker(3).peer_side.peers.own.headers()
        refused = [
            named,
            {**named, PEER_SECRET: sender.own.secret},
            {**named, **dict([sender.evidence(BrokerId(3))])},
            {**named, **dict([cluster.broker(3).peer_side.peers.evidence(BrokerId(2))])},
            {**restarted, **ended},
            begun,
        ]
        routes = [route for route in (*ROUTES, *PEER_ROUTES) if route.listener is not Listener.OPS]

        async def codes(calls: Calls, headers: dict[str, str]) -> set[str]:
            """Call every route; return the codes of the problems."""
            paths = [(route.method, route.path.replace("{", "").replace("}", "")) for route in routes]
            return {(await calls.call(method, path, None, headers)).code for method, path in paths}

        async with Calls(target, *pems) as calls:
            # A proof is valid until the broker has received a much newer proof of the same incarnation.
            accepted = [
                await calls.call("POST", LOG_ENDS_PATH, b"{}", {**named, **proof})
                for proof in (begun, later_proof(cluster, 1, 2))
            ]
            found = [await codes(calls, headers) for headers in refused]
            stale = await codes(calls, {**previous, **ended})
    finally:
        await cluster.close()

    assert [answer.code for answer in accepted] == ["malformed_request"] * 2
    assert found == [{"peer_refused"}] * len(refused)
    assert stale == {"stale_broker_epoch"}


async def test_a_broker_has_the_rights_of_the_caller_that_it_names(tmp_path: Path) -> None:
    """A call from a broker has the rights of the caller that it names, or no rights without a name (rule A21).

    A token in such a call is not read, even if the token is a superuser's.
    """
    cluster, file = await Cluster.open(tmp_path), tmp_path / "admin.token"
    try:
        await cluster.start(1, 2, security="enforce", admin_token_file=file)
        admin = file.read_text().strip()
        async with Calls(str(cluster.brokers[2].addresses.data)) as calls:
            await Secured(cluster, calls, admin).acl("user:ann", "all", "topic:*")
        sender = cluster.broker(1).peer_side.peers
        headers = {**sender.own.headers(), **dict([sender.evidence(BrokerId(2))])}
        headers["authorization"] = f"Bearer {admin}"
        routes = [route for route in ROUTES if route.listener is Listener.DATA and route.access.gate]
        refused: dict[str, set[str]] = {}
        async with Calls(str(cluster.brokers[2].addresses.peer)) as calls:
            for caller in ("", "user:ann", "user:admin"):
                named = {FORWARDED_CALLER: caller} if caller else {}
                refused[caller] = {
                    route.name
                    for route in routes
                    if (await calls.call(route.method, path_of(route), None, headers | named)).status == 403
                }
    finally:
        await cluster.close()

    assert refused == {
        "": {route.name for route in routes},
        "user:ann": {
            route.name for route in routes if any(need.kind is not Kind.TOPIC for need in route.access.gate)
        },
        "user:admin": set(),
    }
