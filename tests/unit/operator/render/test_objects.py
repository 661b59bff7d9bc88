from __future__ import annotations

from typing import Any

import pytest
import yaml

import render_kit
from fairlead_api.configuration import KEYS
from fairlead_operator.naming import Manifest, owned_labels
from fairlead_operator.render import (
    NO_MEMBER_JOINS,
    SET_ELSEWHERE,
    EtcdInputs,
    advertised_addresses,
    at_nodes,
    bootstrap_address,
    broker_addresses,
    broker_ids,
    external_addresses,
    external_bootstrap,
    forbidden_text,
    split_config,
)
from fairlead_operator.render.etcd import quota_argument
from fairlead_operator.render.metadata import belongs_to
from refusals import missing


@pytest.mark.parametrize(
    ("cluster", "owners", "belongs"),
    [
        ("main", ["uid-main"], True),
        ("main", [], True),
        ("main", ["uid-other"], False),
        ("main", ["uid-main", "uid-other"], False),
        ("other", ["uid-main"], False),
    ],
)
def test_an_object_belongs_to_the_cluster_that_owns_it(
    cluster: str, owners: list[str], belongs: bool
) -> None:
    """An object with the Cluster's name is the Cluster's own unless another object controls it (rule K6)."""
    references = [{"uid": uid, "controller": True} for uid in owners] + [{"uid": "uid-of-a-dependent"}]
    live = {"metadata": {"labels": owned_labels(cluster), "ownerReferences": references}}

    assert belongs_to(live, "main", "uid-main") is belongs
    assert not belongs_to({"metadata": {}}, "main", "uid-main")


def test_config_goes_where_its_key_belongs() -> None:
    """Dynamic keys are set on the running cluster, other known keys in the file, and unknown keys are refused."""
    split = split_config(
        {
            "retention.ms": "60000",
            "num.io.threads": "8",
            "cordoned": "true",
            "no.such.key": "1",
            "segment.bytes": "much",
            "compression.type": "gzip",
            "security.mode": "observe",
        }
    )

    assert split.dynamic == {"retention.ms": "60000"}
    assert split.restart == {"num.io.threads": "8"}
    assert set(split.forbidden) == {
        *("cordoned", "no.such.key", "segment.bytes", "compression.type", "security.mode"),
    }
    assert "much" in split.forbidden["segment.bytes"]


def test_refused_keys_cause_one_list_of_all_allowed_keys() -> None:
    """Several unknown keys are reported with one list of allowed keys: the supported keys except the operator's own."""
    told = forbidden_text(split_config({"no.such.key": "1", "num.io.thread": "8", "a.b": "1"}).forbidden)
    listed = told.rpartition("allowed are ")[2].split(", ")
    known = forbidden_text(split_config({"cordoned": "true"}).forbidden)

    assert told.count("allowed are") == 1
    assert missing(told, "num.io.threads") == []
    assert listed == [name for name in KEYS if name not in ("cordoned", "draining", *SET_ELSEWHERE)]
    assert "allowed are" not in known


def test_the_file_holds_what_brokers_read_at_the_start() -> None:
    """The configuration file has the cluster's name, the keys that brokers read at startup, and the addresses."""
    objects = render_kit.drawn(
        render_kit.cluster_of(config={"max.connections": "10", "retention.ms": "1"}),
        render_kit.inputs_of(advertised={1: "b:2", 0: "a:1"}),
    )
    file = yaml.safe_load(objects["ConfigMap/main-config"]["data"]["broker.yaml"])

    assert file == {
        "cluster": "shop.main",
        "config_values": {"max.connections": "10"},
        "advertise_each": {"0": "a:1", "1": "b:2"},
    }


def test_one_pod_alone_has_no_budget() -> None:
    """A single pod has no disruption budget, which would block the drain of its node."""
    alone = render_kit.cluster_of(brokers=[{**render_kit.POOL, "replicas": 1}])
    objects = render_kit.drawn(alone, render_kit.inputs_of(etcd=EtcdInputs(1)))

    assert not [name for name in objects if name.startswith("PodDisruptionBudget")]


def test_the_plan_says_how_many_pods_there_are() -> None:
    """The plan sets the number of pods: a shrinking pool keeps pods and Services, and a joining member has a pod."""
    cluster = render_kit.cluster_of(listeners={"data": {"perBroker": True}})
    inputs = render_kit.inputs_of(pool_replicas={"a": 5}, etcd=EtcdInputs(4, "x=http://y:1", "new"))
    objects = render_kit.drawn(cluster, inputs)
    etcd = objects["StatefulSet/main-etcd"]

    assert objects["StatefulSet/main-a"]["spec"]["replicas"] == 5
    assert "Service/main-broker-4" in objects
    assert etcd["spec"]["replicas"] == 4
    assert render_kit.variables_of(etcd, "etcd")["ETCD_INITIAL_CLUSTER"] == "x=http://y:1"
    assert render_kit.variables_of(etcd, "etcd")["ETCD_INITIAL_CLUSTER_STATE"] == "new"
    assert EtcdInputs(1).initial_cluster == NO_MEMBER_JOINS


def test_storage_and_claims_follow_the_resource() -> None:
    """Storage class and claim policies come from the Cluster.

    A storage size that cannot change yet keeps its current value.
    """
    pool = {**render_kit.POOL, "storage": {"size": "10Gi", "storageClassName": "fast"}}
    cluster = render_kit.cluster_of(
        brokers=[pool], claimPolicy={"whenDeleted": "Delete", "whenScaled": "Delete"}
    )
    objects = render_kit.drawn(cluster, render_kit.inputs_of(storage={"main-a": "8Gi"}))
    spec, etcd = (objects[f"StatefulSet/main-{name}"]["spec"] for name in ("a", "etcd"))
    claim = spec["volumeClaimTemplates"][0]["spec"]

    assert claim["storageClassName"] == "fast"
    assert claim["resources"]["requests"]["storage"] == "8Gi"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Delete"}
    assert etcd["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}


@pytest.mark.parametrize(("size", "quota"), [("2Gi", 858_993_459), ("1Ti", 8 << 30)])
def test_the_store_of_etcd_leaves_room_on_its_volume(size: str, quota: int) -> None:
    """The store quota of etcd is two fifths of its volume, and at most 8 GiB."""
    objects = render_kit.drawn(render_kit.cluster_of(etcd={"managed": {"storage": {"size": size}}}))
    arguments = render_kit.container_of(objects["StatefulSet/main-etcd"], "etcd")["args"]

    assert f"--quota-backend-bytes={quota}" in arguments


def test_the_store_of_etcd_fits_the_smallest_volume() -> None:
    """The store quota of etcd follows the smallest volume, but not a volume that was enlarged by hand."""
    for volume, quota in ((1000, 400), (1 << 40, 858_993_459)):
        inputs = render_kit.inputs_of(etcd=EtcdInputs(3, volume_bytes=volume))
        objects = render_kit.drawn(render_kit.cluster_of(), inputs)
        arguments = render_kit.container_of(objects["StatefulSet/main-etcd"], "etcd")["args"]

        assert f"--quota-backend-bytes={quota}" in arguments
        assert quota_argument(arguments) == quota
    assert quota_argument(["--quota-backend-bytes=much"]) == quota_argument([]) == 0


def test_external_etcd_draws_nothing_of_etcd() -> None:
    """No objects are rendered for an external etcd, and no credentials are set without a Secret."""
    cluster = render_kit.cluster_of(etcd={"external": {"endpoints": ["http://a:2379", "http://b:2379"]}})
    objects = render_kit.drawn(cluster, render_kit.inputs_of(etcd=None))
    variables = render_kit.variables_of(objects["StatefulSet/main-a"])

    assert not [name for name in objects if "etcd" in name]
    assert variables["FAIRLEAD_ETCD"] == "http://a:2379,http://b:2379"
    assert "FAIRLEAD_ETCD_CREDENTIALS" not in variables


def test_walls_and_monitors_can_be_left_out() -> None:
    """Network policies and pod monitors are omitted if the Cluster disables them or the kind is not served."""
    off = render_kit.cluster_of(networkPolicy={"enabled": False}, podMonitor={"enabled": False})
    without_kind = render_kit.drawn(render_kit.cluster_of(), render_kit.inputs_of(kinds=frozenset()))

    assert not [name for name in render_kit.drawn(off) if name.startswith(("NetworkPolicy", "PodMonitor"))]
    assert not [name for name in without_kind if name.startswith("PodMonitor")]


def test_prometheus_reads_only_pods_of_the_component_at_a_port() -> None:
    """Prometheus scrapes each port only on pods of its component, because a sidecar may have a port named `metrics`."""
    endpoints = render_kit.drawn(render_kit.cluster_of())["PodMonitor/main"]["spec"]["podMetricsEndpoints"]
    kept = {
        endpoint["port"]: [
            (rule["sourceLabels"], rule["regex"])
            for rule in endpoint["relabelings"]
            if rule["action"] == "keep"
        ]
        for endpoint in endpoints
    }
    component = ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]

    assert kept == {"http-ops": [(component, "broker")], "metrics": [(component, "etcd")]}


def test_an_operator_of_an_unknown_namespace_is_not_admitted() -> None:
    """A network policy opens the data port, and admits the operator only if the operator's namespace is known."""
    objects = render_kit.drawn(render_kit.cluster_of(), render_kit.inputs_of(operator_namespace=""))
    [data, peer, ops] = objects["NetworkPolicy/main-brokers"]["spec"]["ingress"]

    assert "from" not in data
    assert len(peer["from"]) == len(ops["from"]) == 1


@pytest.mark.parametrize("is_managed", [True, False])
@pytest.mark.parametrize("listed", [[], [{"ipBlock": {"cidr": "192.0.2.0/24"}}]])
def test_egress_is_closed_but_for_listed_peers(listed: list[dict[str, Any]], *, is_managed: bool) -> None:
    """With `egress`, brokers may call each other, managed etcd, DNS and listed peers; etcd may call itself and DNS."""
    etcd = {"managed": {"replicas": 3}} if is_managed else {"external": {"endpoints": ["http://a:2379"]}}
    cluster = render_kit.cluster_of(etcd=etcd, networkPolicy={"egress": listed})
    inputs = render_kit.inputs_of() if is_managed else render_kit.inputs_of(etcd=None)
    objects = render_kit.drawn(cluster, inputs)
    policies = {
        name: each["spec"] for name, each in objects.items() if name.startswith("NetworkPolicy/main-")
    }
    ports = {
        name: [[port["port"] for port in rule.get("ports", ())] for rule in each["egress"]]
        for name, each in policies.items()
    }
    brokers = policies["NetworkPolicy/main-brokers"]

    assert {tuple(each["policyTypes"]) for each in policies.values()} == {("Ingress", "Egress")}
    assert ports == {
        "NetworkPolicy/main-brokers": [
            [9521],
            [53, 53],
            *([[2379]] if is_managed else []),
            *([[]] if listed else []),
        ],
        **({"NetworkPolicy/main-etcd": [[2379, 2380], [53, 53]]} if is_managed else {}),
    }
    assert [rule["to"] for rule in brokers["egress"] if "ports" not in rule] == ([listed] if listed else [])


def test_the_port_of_the_nodes_is_the_bootstraps() -> None:
    """The external bootstrap Service has the node port, and internal clients use a different Service."""
    cluster = render_kit.cluster_of(
        listeners={"data": {"type": "nodeport", "perBroker": True, "nodePort": 30000}}
    )
    objects, older = (
        render_kit.drawn(cluster),
        render_kit.drawn(cluster, render_kit.inputs_of(external=False)),
    )
    names = [f"Service/main-{name}" for name in ("external", "broker-0")]

    assert objects["Service/main-external"]["spec"]["ports"][0]["nodePort"] == 30000
    assert "nodePort" not in objects["Service/main-broker-0"]["spec"]["ports"][0]
    assert [objects[name]["spec"]["type"] for name in names] == ["NodePort"] * 2
    assert objects["Service/main-bootstrap"]["spec"]["type"] == "ClusterIP"
    assert [objects[name]["spec"]["ports"][0]["targetPort"] for name in names] == ["external"] * 2
    assert [older[name]["spec"]["ports"][0]["targetPort"] for name in names] == ["http"] * 2
    assert "Service/main-external" not in render_kit.drawn(render_kit.cluster_of())


def test_the_kafka_listener_has_a_port_everywhere_and_an_address_for_each_broker() -> None:
    """With the Kafka listener, pods, Services and the NetworkPolicy have its port; without it, none of them has it."""
    peers = {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    host = "kafka-{id}.example.com"
    kinds = {
        "off": {"enabled": False, "type": "loadbalancer", "advertisedHost": host},
        "inside": {"enabled": True},
        "outside": {
            "enabled": True,
            "type": "loadbalancer",
            "advertisedHost": host,
            "annotations": {"a": "b"},
        },
    }
    drawn = {
        name: render_kit.drawn(render_kit.cluster_of(listeners={"kafka": kafka}, networkPolicy=peers))
        for name, kafka in kinds.items()
    }
    advertised = {
        name: render_kit.variables_of(objects["StatefulSet/main-a"]).get("FAIRLEAD_KAFKA_ADVERTISE")
        for name, objects in drawn.items()
    }
    policies = {
        name: [port["port"] for port in objects["NetworkPolicy/main-brokers"]["spec"]["ingress"][0]["ports"]]
        for name, objects in drawn.items()
    }
    balancers = {
        name: [objects[each] for each in sorted(objects) if each.startswith("Service/main-kafka-")]
        for name, objects in drawn.items()
    }

    assert advertised == {
        "off": None,
        "inside": "{pod}.main-brokers.shop.svc:9092",
        "outside": "kafka-{id}.example.com:9092",
    }
    assert policies == {name: [9520, 9523, *([] if name == "off" else [9092])] for name in kinds}
    for service in ("main-brokers", "main-bootstrap"):
        ports = {
            name: {port["name"]: port["port"] for port in objects[f"Service/{service}"]["spec"]["ports"]}
            for name, objects in drawn.items()
        }
        assert "kafka" not in ports["off"]
        assert ports["inside"]["kafka"] == ports["outside"]["kafka"] == 9092
    assert [len(balancers[name]) for name in kinds] == [0, 0, 3]
    assert balancers["outside"][1]["metadata"]["annotations"]["a"] == "b"
    assert balancers["outside"][1]["spec"] == {
        "type": "LoadBalancer",
        "publishNotReadyAddresses": True,
        "selector": {
            **drawn["inside"]["Service/main-bootstrap"]["spec"]["selector"],
            "statefulset.kubernetes.io/pod-name": "main-a-1",
        },
        "ports": [{"name": "kafka", "port": 9092, "targetPort": "kafka", "protocol": "TCP"}],
    }


def test_each_broker_has_its_own_node_port_for_kafkas_clients() -> None:
    """Broker n has the first node port plus n, and advertises this port at the address of its node."""
    kafka = {"enabled": True, "type": "nodeport", "firstNodePort": 30920}
    objects = render_kit.drawn(render_kit.cluster_of(listeners={"kafka": kafka}))
    services = [objects[each]["spec"] for each in sorted(objects) if each.startswith("Service/main-kafka-")]

    variables = render_kit.variables_of(objects["StatefulSet/main-a"])
    assert variables["FAIRLEAD_KAFKA_ADVERTISE"] == "{node}:{id+30920}"
    assert [(each["type"], each["ports"][0]["nodePort"]) for each in services] == [
        ("NodePort", 30920),
        ("NodePort", 30921),
        ("NodePort", 30922),
    ]


def live(name: str, *, ingress: list[dict[str, str]] | None = None, node_port: int = 0) -> Manifest:
    """Return a Service as the API server stores it, with node port and load balancer."""
    port: dict[str, Any] = {"port": 9520, **({"nodePort": node_port} if node_port else {})}
    balancer = {"ingress": ingress} if ingress is not None else {}
    return {"metadata": {"name": name}, "spec": {"ports": [port]}, "status": {"loadBalancer": balancer}}


def test_addresses_of_load_balancers_are_advertised_when_they_are_known() -> None:
    """A load balancer's address is advertised to external clients once it is known, and never to internal clients."""
    cluster = render_kit.cluster_of(listeners={"data": {"type": "loadbalancer", "perBroker": True}})
    services = [
        live("main-broker-0", ingress=[{"ip": "192.0.2.1"}]),
        live("main-broker-1", ingress=[{"hostname": "lb.example.com"}]),
        live("main-broker-2"),
        live("main-external", ingress=[{"ip": "2001:db8::1"}]),
    ]
    advertised = advertised_addresses(cluster, {}, services)

    assert advertised == {0: "192.0.2.1:9520", 1: "lb.example.com:9520"}
    assert external_addresses(cluster, {}, advertised) == advertised
    assert broker_addresses(cluster, {})[0] == "main-a-0.main-brokers.shop.svc:9520"
    assert external_bootstrap(cluster, services, {}) == "http://[2001:db8::1]:9520"
    assert external_bootstrap(cluster, [], {}) == ""
    assert bootstrap_address(cluster) == "http://main-bootstrap.shop.svc:9520"


def test_addresses_by_the_ports_of_nodes() -> None:
    """An address with a node port has the host of the spec or of the broker's node, and the port of its Service."""
    listener = {"type": "nodeport", "perBroker": True, "advertisedHost": "b{id}.{namespace}.example.com"}
    cluster = render_kit.cluster_of(listeners={"data": listener})
    services = [live("main-broker-0", node_port=30001), {"metadata": {"name": "main-broker-1"}}]
    unnamed = render_kit.cluster_of(listeners={"data": {"type": "nodeport", "perBroker": True}})

    assert advertised_addresses(cluster, {}, services) == {0: "b0.shop.example.com:30001"}
    assert advertised_addresses(unnamed, {}, services) == {0: "{node}:30001"}
    assert at_nodes({0: "{node}:30001", 1: "{node}:2", 2: "b2:3"}, {0: "2001:db8::7"}) == {
        0: "[2001:db8::7]:30001",
        2: "b2:3",
    }
    assert broker_addresses(cluster, {})[1] == "main-a-1.main-brokers.shop.svc:9520"


def test_clients_outside_begin_at_nodes() -> None:
    """Node ports have a bootstrap URL for each of at most three nodes, or for the one host of the Cluster."""
    services = [live("main-external", node_port=30520)]
    nodes = {0: "10.0.0.2", 1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.0.3", 4: "10.0.0.4"}
    listener = {"type": "nodeport", "perBroker": True}
    by_node = render_kit.cluster_of(listeners={"data": listener})
    by_name = render_kit.cluster_of(listeners={"data": {**listener, "advertisedHost": "nodes.example.com"}})
    each = render_kit.cluster_of(listeners={"data": {**listener, "advertisedHost": "b{id}.example.com"}})
    urls = "http://10.0.0.2:30520,http://10.0.0.1:30520,http://10.0.0.3:30520"

    assert external_bootstrap(by_node, services, nodes) == urls
    assert external_bootstrap(by_name, services, nodes) == "http://nodes.example.com:30520"
    assert external_bootstrap(each, services, nodes) == urls
    assert external_bootstrap(by_node, [], nodes) == ""


def test_an_advertised_host_without_services_is_the_users_own_way() -> None:
    """Without Services, the placeholders of an advertised host are filled in for each broker, and its port is kept."""
    named = render_kit.cluster_of(listeners={"data": {"advertisedHost": "{pod}.example.com:443"}})
    plain = render_kit.cluster_of(listeners={"data": {"advertisedHost": "b-{id}.example.com"}})
    variables = render_kit.variables_of(render_kit.drawn(plain)["StatefulSet/main-a"])

    assert advertised_addresses(named, {}, []) == {}
    assert broker_addresses(named, {})[0] == "main-a-0.example.com:443"
    assert variables["FAIRLEAD_ADVERTISE"] == "b-{id}.example.com:9520"


def test_an_advertised_host_of_load_balancers_is_for_clients_outside() -> None:
    """External clients get the host of the Cluster, and internal clients the name of the pod."""
    listener = {"type": "loadbalancer", "advertisedHost": "b-{id}.example.com"}
    cluster = render_kit.cluster_of(listeners={"data": listener})
    variables = render_kit.variables_of(render_kit.drawn(cluster)["StatefulSet/main-a"])

    assert variables["FAIRLEAD_ADVERTISE"] == "{pod}.main-brokers.shop.svc:9520"
    assert variables["FAIRLEAD_EXTERNAL_ADVERTISE"] == "b-{id}.example.com:9520"
    assert external_addresses(cluster, {}, {})[2] == "b-2.example.com:9520"


def test_a_proxy_in_front_of_each_broker_has_a_scheme() -> None:
    """Services for a proxy have no external address, and brokers advertise the proxy's host, scheme and port."""
    listener = {"type": "clusterip", "perBroker": True, "advertisedHost": "https://b-{id}.example.com"}
    cluster = render_kit.cluster_of(listeners={"data": listener})
    objects = render_kit.drawn(cluster)
    variables = render_kit.variables_of(objects["StatefulSet/main-a"])
    services = [live("main-external", node_port=1), live("main-broker-0", node_port=2)]

    assert objects["Service/main-broker-0"]["spec"]["type"] == "ClusterIP"
    assert variables["FAIRLEAD_EXTERNAL_ADVERTISE"] == "https://b-{id}.example.com:443"
    assert advertised_addresses(cluster, {}, services) == {}
    assert external_addresses(cluster, {}, {})[1] == "https://b-1.example.com:443"
    assert external_bootstrap(cluster, services, {}) == ""


def test_brokers_are_counted_from_their_pools_first_id() -> None:
    """Brokers are numbered upwards from their pool's first id, and the plan sets their number."""
    pools = [{**render_kit.POOL, "firstBrokerId": 100, "replicas": 1}, {**render_kit.POOL, "name": "b"}]
    cluster = render_kit.cluster_of(brokers=pools)

    assert broker_ids(cluster, {"b": 2}) == [("b", 0), ("b", 1), ("a", 100)]
