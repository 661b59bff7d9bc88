"""The peer listener: it serves only registered brokers with a proof for this broker (proof V12)."""

from __future__ import annotations

from pathlib import Path

from broker_kit import Calls
from cluster_kit import Cluster
from fairlead_api.identifiers import BrokerId
from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.peers.identity import PEER_SECRET
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES


async def test_no_route_of_the_peer_listener_is_open(tmp_path: Path) -> None:
    """Every route is refused without a proof, with a proof from or for another broker, and with a secret."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        sender, other = (cluster.broker(number).peer_side.peers for number in (1, 3))
        target = cluster.brokers[2].addresses.peer
        assert target is not None
        proofs = [
            {},
            {PEER_SECRET: sender.own.secret},
            dict([sender.evidence(BrokerId(3))]),
            dict([other.evidence(BrokerId(2))]),
        ]
        routes = [route for route in (*ROUTES, *PEER_ROUTES) if route.listener is not Listener.OPS]
        async with Calls(target) as calls:
            answers = [
                await calls.call(
                    route.method,
                    route.path.replace("{", "").replace("}", ""),
                    None,
                    {**sender.own.headers(), **proof},
                )
                for route in routes
                for proof in proofs
            ]

        assert {answer.code for answer in answers} == {"peer_refused"}
    finally:
        await cluster.close()
