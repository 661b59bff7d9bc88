"""Endpoints of the data and peer listeners: one endpoint for each route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.runtime import Broker
from fairlead_broker.server.admin.cluster import ClusterCalls
from fairlead_broker.server.admin.configs import ConfigCalls
from fairlead_broker.server.admin.groups import GroupCalls
from fairlead_broker.server.admin.links import LinkCalls
from fairlead_broker.server.admin.operations import OperationCalls
from fairlead_broker.server.admin.pages import DocsPageCalls, OpenApiCalls, ProblemPageCalls
from fairlead_broker.server.admin.producers import ProducerCalls
from fairlead_broker.server.admin.quotas import QuotaCalls
from fairlead_broker.server.admin.security import SecurityCalls
from fairlead_broker.server.admin.topics import TopicCalls
from fairlead_broker.server.admin.transactions import TransactionCalls
from fairlead_broker.server.http.access_gate import AccessGate
from fairlead_broker.server.http.body import ProduceBodyLimits
from fairlead_broker.server.http.call import Endpoint
from fairlead_broker.server.http.peer_gate import PeerGate
from fairlead_broker.server.records.fetch import FetchCalls
from fairlead_broker.server.records.offsets import OffsetCalls
from fairlead_broker.server.records.produce import ProduceCalls
from fairlead_broker.server.records.produce_frames import ProduceFrameCalls, ProduceRouting
from fairlead_broker.server.records.tail import TailCalls
from fairlead_broker.server.records.topic_produce import TopicProduceCalls
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.peer_calls import PeerCalls

DATA_ROUTES: Final = {route.name: route for route in ROUTES if route.listener is Listener.DATA}
ANSWERED_ANYWHERE: Final = frozenset(
    {
        "allocate_producer",
        "create_token",
        "revoke_token",
        "create_acl",
        "remove_acl",
        "check_acls",
        "put_quota",
        "remove_quota",
    }
)
"""Names of mutating admin calls that need no controller; every other mutating admin call is forwarded to the
controller."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of a broker by route name, with the components that listeners need."""

    data: Mapping[str, Endpoint]
    peer: Mapping[str, Endpoint]
    """Endpoints of the peer listener: calls between brokers, and forwarded calls from clients."""
    gate: PeerGate
    access: AccessGate
    forwarding: Forwarding


def build_endpoints(broker: Broker) -> Endpoints:
    """Build one endpoint for each route of the route table."""
    forwarding = Forwarding(broker, broker.telemetry.metric("fairlead_forwarded_requests_total"))
    records = _record_endpoints(broker, forwarding)
    admin = _admin_endpoints(broker, forwarding)
    missing = DATA_ROUTES.keys() ^ (records.keys() | admin.keys())
    assert not missing, f"routes without endpoint or endpoints without route: {sorted(missing)}"
    for name in admin.keys() - ANSWERED_ANYWHERE:
        if DATA_ROUTES[name].method != "GET":
            admin[name] = forwarding.at_controller(admin[name])
    data = {**records, **admin}
    return Endpoints(
        data=data,
        peer={**data, **PeerCalls(broker.peer_side, broker.quota_exchange, broker.transactions).endpoints()},
        gate=PeerGate(broker.peer_side),
        access=AccessGate(broker.security, broker.quotas),
        forwarding=forwarding,
    )


def _record_endpoints(broker: Broker, forwarding: Forwarding) -> dict[str, Endpoint]:
    limits, clock = broker.settings.limits, broker.clock
    offsets = OffsetCalls(broker, forwarding)
    bytes_max = limits.request_body_bytes_max
    bodies = ProduceBodyLimits(bytes_max, min(bytes_max, limits.json_body_bytes_max))
    return {
        **ProduceCalls(broker, forwarding, clock, bodies).endpoints(),
        **ProduceFrameCalls(broker, ProduceRouting(broker, forwarding), bytes_max).endpoints(),
        **TopicProduceCalls(broker, forwarding, clock, bodies).endpoints(),
        **FetchCalls(broker, forwarding).endpoints(),
        **offsets.endpoints(),
        **TailCalls(broker, forwarding, offsets, clock).endpoints(),
        **GroupCalls(broker, forwarding).endpoints(),
        **TransactionCalls(broker, forwarding).endpoints(),
    }


def _admin_endpoints(broker: Broker, forwarding: Forwarding) -> dict[str, Endpoint]:
    return {
        **TopicCalls(broker).endpoints(),
        **ClusterCalls(broker).endpoints(),
        **ConfigCalls(broker).endpoints(),
        **OperationCalls(broker).endpoints(),
        **LinkCalls(broker, forwarding).endpoints(),
        **ProducerCalls(broker, forwarding).endpoints(),
        **SecurityCalls(broker).endpoints(),
        **QuotaCalls(broker).endpoints(),
        **ProblemPageCalls().endpoints(),
        **OpenApiCalls(broker.release).endpoints(),
        **DocsPageCalls(broker.release).endpoints(),
    }
