"""Clusters for the tests of rendering, and the golden files. Run as a program, the module writes the golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import HTTP_ROUTE, POD_MONITOR, TLS_ROUTE, Manifest
from fairlead_operator.render import EtcdInputs, Images, RenderInputs, render_cluster

GOLDEN = Path(__file__).parents[1] / "unit" / "operator" / "render" / "golden"
IMAGES = Images(broker="example/fairlead:1", etcd="example/etcd:1")
POOL: dict[str, Any] = {"name": "a", "replicas": 3, "storage": {"size": "10Gi"}}


def cluster_of(**spec: object) -> Cluster:
    """Return the Cluster shop/main, by default with three brokers in pool a."""
    return Cluster.parse(
        {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": "main", "namespace": "shop", "uid": "cluster-uid"},
            "spec": {"brokers": [POOL], **spec},
        }
    )


def inputs_of(**others: Any) -> RenderInputs:
    """Return inputs with a formed etcd of three members, an operator, and all optional kinds."""
    given: dict[str, Any] = {
        "images": IMAGES,
        "etcd": EtcdInputs(3),
        "kinds": frozenset({HTTP_ROUTE.kind, TLS_ROUTE.kind, POD_MONITOR.kind}),
        "operator_namespace": "operators",
    }
    return RenderInputs(**{**given, **others})


def drawn(cluster: Cluster, inputs: RenderInputs | None = None) -> dict[str, Manifest]:
    """Return the rendered objects by `Kind/name`."""
    objects = render_cluster(cluster, inputs or inputs_of())
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects}


def container_of(manifest: Manifest, name: str = "broker") -> Manifest:
    """Return a container of a StatefulSet."""
    containers: list[Manifest] = manifest["spec"]["template"]["spec"]["containers"]
    return next(each for each in containers if each["name"] == name)


def variables_of(manifest: Manifest, name: str = "broker") -> dict[str, object]:
    """Return the plain variables of a container of a StatefulSet."""
    return {each["name"]: each.get("value") for each in container_of(manifest, name)["env"]}


def golden_cases() -> dict[str, list[Manifest]]:
    """Return the rendered objects of the golden files, by file name."""
    plain = cluster_of(config={"broker.session.timeout.ms": "9000", "retention.ms": "60000"})
    outside = cluster_of(
        brokers=[{**POOL, "replicas": 1, "firstBrokerId": 100}],
        etcd={"external": {"endpoints": ["https://etcd.example.com:2379"], "secretName": "etcd"}},
        listeners={"data": {"type": "loadbalancer", "perBroker": True, "annotations": {"dns": "yes"}}},
        networkPolicy={"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        deletionPolicy="Retain",
    )
    return {
        "managed.yaml": render_cluster(plain, inputs_of()),
        "outside.yaml": render_cluster(
            outside, inputs_of(etcd=None, kinds=frozenset(), advertised={100: "192.0.2.7:9520"})
        ),
    }


def as_yaml(objects: list[Manifest]) -> str:
    """Return objects as YAML, as in a golden file."""
    return yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """YAML writer without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Write a value that occurs twice in full both times."""
        return True


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, objects in golden_cases().items():
        (GOLDEN / name).write_text(as_yaml(objects))
