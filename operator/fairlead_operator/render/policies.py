"""PodDisruptionBudgets, NetworkPolicies and PodMonitors of a Cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import (
    BACKUP_OF_LABEL,
    BROKER_COMPONENT,
    CLUSTER_LABEL,
    CONSOLE_COMPONENT,
    CONSOLE_PORT,
    DATA_PORT,
    DISRUPTION_BUDGET,
    ETCD_COMPONENT,
    ETCD_METRICS_PORT,
    ETCD_METRICS_PORT_NAME,
    EXTERNAL_PORT,
    FIELD_MANAGER,
    KAFKA_PORT,
    NAME_LABEL,
    NETWORK_POLICY,
    OPS_PORT,
    OPS_PORT_NAME,
    PEER_PORT,
    POD_MONITOR,
    TLS_PORT,
    Manifest,
    authority_name,
    bootstrap_service_name,
    brokers_budget_name,
    brokers_policy_name,
    console_name,
    etcd_name,
    metrics_user_name,
    pod_monitor_name,
    pod_selector,
)
from fairlead_operator.render.addresses import broker_ids, serves_tls
from fairlead_operator.render.etcd import etcd_ports
from fairlead_operator.render.fingerprints import said
from fairlead_operator.render.inputs import RenderInputs
from fairlead_operator.render.metadata import framed
from fairlead_operator.render.security import BUNDLE_FILE, ops_scheme
from fairlead_operator.render.users import TOKEN

PROMETHEUS: Final = {NAME_LABEL: "prometheus"}
"""Label of pods in any namespace that scrape metrics."""
DNS_PORT: Final = 53
NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
SCRAPE_INTERVAL: Final = "30s"
COMPONENT_META_LABEL: Final = "__meta_kubernetes_pod_label_app_kubernetes_io_component"
"""Prometheus meta label with the value of the pod's component label."""
BROKER_NAMED: Final[Manifest] = {
    "action": "replace",
    "sourceLabels": ["__meta_kubernetes_pod_name"],
    "targetLabel": "broker",
}
"""Relabeling that adds the name of the broker pod to every series."""


def disruption_budgets(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return PodDisruptionBudgets that allow the eviction of one broker and one etcd member at a time.

    A single pod gets no budget, since a budget would block every drain of its node. A pod that is not ready may be
    evicted only while the other pods are ready (`IfHealthyBudget`), since the pod may have the newest records.
    """
    budgets = []
    if len(broker_ids(cluster, inputs.pool_replicas)) > 1:
        budgets.append(_budget(cluster, brokers_budget_name(cluster.name), BROKER_COMPONENT))
    if inputs.etcd is not None and inputs.etcd.replicas > 1:
        budgets.append(_budget(cluster, etcd_name(cluster.name), ETCD_COMPONENT))
    return budgets


def network_policies(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return NetworkPolicies for ingress and, if the Cluster lists peers, for egress (rule K8).

    NetworkPolicies never block probes of the kubelet.
    """
    if not cluster.spec.network_policy.enabled:
        return []
    policies = [_broker_policy(cluster, inputs)]
    if inputs.etcd is not None:
        policies.append(_etcd_policy(cluster, inputs))
    if cluster.spec.console is not None:
        policies.append(_console_policy(cluster))
    return policies


def pod_monitors(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return the PodMonitor of brokers and etcd, if the API server has that kind and the Cluster enables it."""
    if not cluster.spec.pod_monitor.enabled or POD_MONITOR.kind not in inputs.kinds:
        return []
    manifest = framed(cluster, POD_MONITOR, pod_monitor_name(cluster.name))
    brokers = _endpoint(cluster, OPS_PORT_NAME, BROKER_COMPONENT, also=[BROKER_NAMED])
    endpoints = [{**brokers, **_scraper(cluster)}]
    if inputs.etcd is not None:
        endpoints.append(_endpoint(cluster, ETCD_METRICS_PORT_NAME, ETCD_COMPONENT))
    manifest["spec"] = {
        "selector": {"matchLabels": {CLUSTER_LABEL: cluster.name}},
        "podMetricsEndpoints": endpoints,
    }
    return [manifest]


def _scraper(cluster: Cluster) -> Manifest:
    """Return the fields with which Prometheus authenticates to the brokers and verifies their certificates."""
    security = cluster.spec.security
    if security is None or security.metrics == "Open":
        return {}
    credentials = {"name": metrics_user_name(cluster.name), "key": TOKEN}
    authorization = {"authorization": {"type": "Bearer", "credentials": credentials}}
    if ops_scheme(security) == "http":
        return authorization
    authority = {"configMap": {"name": authority_name(cluster.name), "key": BUNDLE_FILE}}
    # Prometheus calls the addresses of pods, which certificates do not contain.
    name = f"{bootstrap_service_name(cluster.name)}.{cluster.namespace}.svc"
    return {"scheme": "https", "tlsConfig": {"ca": authority, "serverName": name}, **authorization}


def _endpoint(cluster: Cluster, port: str, component: str, also: Sequence[Manifest] = ()) -> Manifest:
    """Return the scrape endpoint for a port, with the labels that dashboards and alerts use to select series."""
    return {
        "port": port,
        "path": "/metrics",
        "interval": SCRAPE_INTERVAL,
        "relabelings": [
            # A PodMonitor scrapes only the pods of its component, even if the user's template for another component
            # adds a container with the same port name.
            {"action": "keep", "sourceLabels": [COMPONENT_META_LABEL], "regex": component},
            # The label is not named `cluster`, since many installations use this name for the Kubernetes cluster.
            {"action": "replace", "targetLabel": "fairlead_cluster", "replacement": cluster.name},
            {"action": "replace", "targetLabel": "fairlead_component", "replacement": component},
            *map(dict, also),
        ],
    }


def _budget(cluster: Cluster, name: str, component: str) -> Manifest:
    manifest = framed(cluster, DISRUPTION_BUDGET, name, component=component)
    manifest["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        "selector": {"matchLabels": pod_selector(cluster.name, component)},
    }
    return manifest


def _broker_policy(cluster: Cluster, inputs: RenderInputs) -> Manifest:
    brokers = _pods(pod_selector(cluster.name, BROKER_COMPONENT))
    operator = _operator(inputs)
    clients = cluster.spec.network_policy.clients
    console = [] if cluster.spec.console is None else [_pods(pod_selector(cluster.name, CONSOLE_COMPONENT))]
    data = (
        None if clients is None else [brokers, *operator, *console, *(dict(said(peer)) for peer in clients)]
    )
    return _policy(
        cluster,
        brokers_policy_name(cluster.name),
        BROKER_COMPONENT,
        [
            _rule(_client_ports(cluster), data),
            _rule([PEER_PORT], [brokers]),
            _rule([OPS_PORT], [*operator, _anywhere(PROMETHEUS)]),
        ],
        _broker_egress(cluster, inputs),
    )


def _client_ports(cluster: Cluster) -> list[int]:
    return [
        *(DATA_PORT, EXTERNAL_PORT),
        *([TLS_PORT] if serves_tls(cluster) else ()),
        *([KAFKA_PORT] if cluster.spec.listeners.kafka.enabled else ()),
    ]


def _broker_egress(cluster: Cluster, inputs: RenderInputs) -> list[Manifest] | None:
    """Return the egress rules of brokers; None if brokers may call every peer."""
    peers = cluster.spec.network_policy.egress
    if peers is None:
        return None
    rules = [_rule([PEER_PORT], [_pods(pod_selector(cluster.name, BROKER_COMPONENT))], way="to"), _dns()]
    if inputs.etcd is not None:
        clients, _ = etcd_ports(inputs.etcd.transport.phase)
        rules.append(_rule(clients, [_pods(pod_selector(cluster.name, ETCD_COMPONENT))], way="to"))
    if peers:
        rules.append({"to": [dict(said(peer)) for peer in peers]})
    return rules


def _etcd_policy(cluster: Cluster, inputs: RenderInputs) -> Manifest:
    brokers = _pods(pod_selector(cluster.name, BROKER_COMPONENT))
    members = _pods(pod_selector(cluster.name, ETCD_COMPONENT))
    operator = _operator(inputs)
    phase = "plain" if inputs.etcd is None else inputs.etcd.transport.phase
    clients, peers = etcd_ports(phase)
    return _policy(
        cluster,
        etcd_name(cluster.name),
        ETCD_COMPONENT,
        [
            _rule(clients, [brokers, members, _pods({BACKUP_OF_LABEL: cluster.name}), *operator]),
            _rule(peers, [members]),
            _rule([ETCD_METRICS_PORT], [*operator, _anywhere(PROMETHEUS)]),
        ],
        # The JSON gateway of a member calls the client port of the member's own address.
        None
        if cluster.spec.network_policy.egress is None
        else [_rule([*clients, *peers], [members], way="to"), _dns()],
    )


def _console_policy(cluster: Cluster) -> Manifest:
    clients = cluster.spec.network_policy.clients
    callers = None if clients is None else [dict(said(peer)) for peer in clients]
    peers = cluster.spec.network_policy.egress
    egress = None
    if peers is not None:
        # The console calls the issuer at which people sign in, which the brokers call too.
        brokers = [_pods(pod_selector(cluster.name, BROKER_COMPONENT))]
        egress = [_rule([DATA_PORT], brokers, way="to"), _dns()]
        if peers:
            egress.append({"to": [dict(said(peer)) for peer in peers]})
    name = console_name(cluster.name)
    return _policy(cluster, name, CONSOLE_COMPONENT, [_rule([CONSOLE_PORT], callers)], egress)


def _policy(
    cluster: Cluster, name: str, component: str, ingress: list[Manifest], egress: list[Manifest] | None
) -> Manifest:
    manifest = framed(cluster, NETWORK_POLICY, name, component=component)
    manifest["spec"] = {
        "podSelector": {"matchLabels": pod_selector(cluster.name, component)},
        "policyTypes": ["Ingress"] if egress is None else ["Ingress", "Egress"],
        "ingress": ingress,
        **({} if egress is None else {"egress": egress}),
    }
    return manifest


def _rule(
    ports: Sequence[int], peers: list[Manifest] | None, *, way: Literal["from", "to"] = "from"
) -> Manifest:
    """Return a rule for the given ports, for ingress or egress; if `peers` is None, the rule allows every peer."""
    rule: Manifest = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    if peers is not None:
        rule[way] = peers
    return rule


def _dns() -> Manifest:
    """Return the egress rule for DNS queries to every server."""
    return {"ports": [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]}


def _operator(inputs: RenderInputs) -> list[Manifest]:
    if not inputs.operator_namespace:
        return []
    namespace = {"matchLabels": {NAMESPACE_LABEL: inputs.operator_namespace}}
    return [{"namespaceSelector": namespace, **_pods({NAME_LABEL: FIELD_MANAGER})}]


def _anywhere(labels: Mapping[str, str]) -> Manifest:
    return {"namespaceSelector": {}, **_pods(labels)}


def _pods(labels: Mapping[str, str]) -> Manifest:
    return {"podSelector": {"matchLabels": dict(labels)}}
