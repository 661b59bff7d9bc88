"""The peer listener: it serves only registered brokers with a proof for this broker (proof V12)."""

from __future__ import annotations

from pathlib import Path

from broker_kit import Calls
from cluster_kit import Cluster
from fairlead_api.access_needs import Kind
from fairlead_api.identifiers import BrokerId
from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.peers.forwarded_callers import FORWARDED_CALLER
from fairlead_broker.peers.identity import PEER_SECRET
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES
from security_kit import Secured, path_of


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
