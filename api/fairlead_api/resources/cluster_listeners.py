"""Listeners of a Cluster: how clients inside and outside Kubernetes reach the brokers."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from fairlead_api.resources.cluster_parts import Annotations
from fairlead_api.resources.resource import Part
from fairlead_api.resources.schema_rules import Rule, kubernetes, rules
from fairlead_api.resources.texts import NamespaceName, ObjectName

ListenerType: TypeAlias = Literal["internal", "nodeport", "loadbalancer", "clusterip"]
KafkaListenerType: TypeAlias = Literal["internal", "nodeport", "loadbalancer"]
RouteKind: TypeAlias = Literal["Ingress", "HTTPRoute", "TLSRoute"]
GATEWAYS_MAX: Final = 8
"""Maximum number of Gateways of a route, which is more than the number of networks with clients."""


class RouteGateway(Part):
    """Gateway to which a route is attached."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: NamespaceName | None = None
    """Namespace of the Gateway; by default the namespace of the Cluster."""
    section_name: ObjectName | None = None
    """Name of a listener of the Gateway; by default every listener that allows the route."""


class ListenerRoute(Part):
    """Route from an Ingress controller or a Gateway to the brokers."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.kind == 'Ingress' || !(has(self.ingressClassName) || has(self.tlsSecretName))",
                "ingressClassName and tlsSecretName are allowed only for kind Ingress",
            ),
            Rule(
                "(self.kind == 'Ingress') != (has(self.gateways) && size(self.gateways) > 0)",
                "kinds HTTPRoute and TLSRoute need gateways, and kind Ingress must not have any",
                ".gateways",
            ),
            Rule(
                "self.kind != 'TLSRoute' || self.scheme == 'https'",
                "a TLSRoute must have scheme https",
                ".scheme",
            ),
        )
    )

    kind: RouteKind
    """Kind of the objects that the operator creates. Ingress: one Ingress for all hosts. HTTPRoute: one route of the \
Gateway API for each host. TLSRoute: one route for each host, for a Gateway that passes TLS through to the brokers."""
    host: Annotated[
        str,
        kubernetes(
            maxLength=253,
            minLength=1,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        ),
    ]
    """Host name of the bootstrap address, such as fairlead.example.com."""
    scheme: Literal["http", "https"] = "https"
    """Scheme with which clients call the Ingress controller or the Gateway."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port at which clients reach the Ingress controller or the Gateway; by default the port of the scheme."""
    ingress_class_name: ObjectName | None = None
    """Class of the Ingress; by default the default class of the Kubernetes cluster."""
    tls_secret_name: ObjectName | None = None
    """Secret with the certificate that the Ingress controller presents to clients."""
    gateways: Annotated[
        tuple[RouteGateway, ...],
        kubernetes(
            **{
                "maxItems": GATEWAYS_MAX,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            }
        ),
    ] = ()
    """Gateways of an HTTPRoute or a TLSRoute."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations of the created objects, for Ingress controllers and DNS controllers."""


class DataListener(Part):
    """Listener at which clients reach the brokers."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.nodePort) || self.type == 'nodeport'",
                "nodePort is allowed only for type nodeport",
                ".nodePort",
            ),
            Rule(
                "!has(self.advertisedHost) || self.type == 'nodeport' || "
                "self.advertisedHost.contains('{id}') || self.advertisedHost.contains('{pod}')",
                "advertisedHost must contain {id} or {pod}, so that each broker has its own host",
                ".advertisedHost",
            ),
            Rule(
                "!has(self.route) || self.type == 'clusterip'",
                "route is allowed only for type clusterip",
                ".route",
            ),
        )
    )

    type: ListenerType = "internal"
    """Type of the listener. internal: brokers are reachable only inside the Kubernetes cluster. nodeport: brokers are \
reachable at a port of every node. loadbalancer: brokers are reachable through a cloud load balancer. \
clusterip: brokers are reachable through an Ingress or a Gateway with `route`, or through another proxy that you \
create in front of the Services for external clients."""
    per_broker: bool = False
    """Whether each broker has its own Service, so that external clients reach leaders directly. If brokers \
have no Services of their own, external clients call a single address, and brokers forward requests to the leaders."""
    advertised_host: Annotated[str, kubernetes(maxLength=253, minLength=1)] | None = None
    """Host at which external clients reach each broker, with the placeholders {id}, {pod} and {namespace}, for \
example broker-{id}.example.com. With type nodeport, the host can be the same for all nodes. By default the host is \
the load balancer of the broker, or the address of its node. The host may have a port, and with type clusterip also \
the scheme of the proxy, as in https://broker-{id}.example.com:443. With type internal, all clients use the host."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations of the Services, for load balancers and DNS controllers."""
    node_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of every node for the bootstrap Service; by default Kubernetes chooses a port."""
    route: ListenerRoute | None = None
    """Route, created by the operator, from an Ingress controller or a Gateway to the Services of type clusterip. \
With perBroker, each broker has a host of its own, given by advertisedHost."""


class KafkaListener(Part):
    """Listener at which clients of Kafka's protocol reach the brokers."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.type) || self.type != 'loadbalancer' || has(self.advertisedHost)",
                "type loadbalancer needs advertisedHost, since Kafka's clients call each broker by its own address",
                ".advertisedHost",
            ),
            Rule(
                "!has(self.type) || self.type != 'nodeport' || has(self.firstNodePort)",
                "type nodeport needs firstNodePort, since each broker has its own port of the nodes",
                ".firstNodePort",
            ),
            Rule(
                "!has(self.firstNodePort) || (has(self.type) && self.type == 'nodeport')",
                "firstNodePort is allowed only for type nodeport",
                ".firstNodePort",
            ),
            Rule(
                "!has(self.advertisedHost) || (has(self.type) && self.type == 'nodeport') || "
                "self.advertisedHost.contains('{id}') || self.advertisedHost.contains('{pod}')",
                "advertisedHost must contain {id} or {pod}, so that each broker has its own host",
                ".advertisedHost",
            ),
        )
    )

    enabled: bool = False
    """Whether brokers serve clients of Kafka's protocol, at port 9092. A change restarts the brokers one by one."""
    type: KafkaListenerType = "internal"
    """Type of the listener. internal: brokers are reachable only inside the Kubernetes cluster. nodeport: each broker \
is reachable at its own port of every node. loadbalancer: each broker has its own cloud load balancer. Kafka's clients \
must reach each broker at its own address."""
    advertised_host: Annotated[str, kubernetes(maxLength=253, minLength=1)] | None = None
    """Host at which clients reach each broker, with the placeholders {id}, {pod} and {namespace}, for example \
kafka-{id}.example.com. The host may have a port, except with type nodeport, with which it can be the same for all \
nodes. By default clients use the name of the broker's pod or, with type nodeport, the address of its node. All \
clients, inside and outside the Kubernetes cluster, use the host."""
    first_node_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of every node for broker 0 with type nodeport; the port of broker 1 is the next one, and so on. \
By default, Kubernetes allows ports from 30000 to 32767."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations of the Services of one broker each, for load balancers and DNS controllers."""


class Listeners(Part):
    """Listeners of the brokers."""

    data: DataListener = DataListener()
    """Listener for producers, consumers and tools."""
    kafka: KafkaListener = KafkaListener()
    """Listener for clients of Kafka's protocol, off by default."""
