"""Images of a Cluster: the image in its spec, otherwise the running image, otherwise the operator's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import ClusterStatus
from fairlead_operator.plan.observed import Observed, ObservedPod, images_of, with_tag
from fairlead_operator.render.inputs import Images
from plan_kit import NOW, pod, stateful_set

OWN = Images(broker="registry.example:5000/fairlead:2", etcd="etcd:2")


def cluster(**spec: object) -> Cluster:
    """Return a Cluster with the given fields in its spec."""
    pool = {"name": "a", "replicas": 1, "storage": {"size": "1Gi"}}
    return Cluster.parse(
        {"metadata": {"name": "main", "namespace": "shop"}, "spec": {"brokers": [pool], **spec}}
    )


def test_a_new_cluster_runs_the_operators_own_images() -> None:
    """A new Cluster without an image runs the operator's own images."""
    assert images_of(cluster(), Observed(now=NOW), OWN) == OWN


def test_running_images_are_kept_until_the_spec_changes() -> None:
    """Running images are kept until the spec names another image, so a newer operator restarts no broker."""
    running = Observed(
        now=NOW,
        sets=(stateful_set(1, image="fairlead:1"),),
        etcd_set=stateful_set(1, pool="", image="etcd:1"),
    )

    assert images_of(cluster(), running, OWN) == Images("fairlead:1", "etcd:1")
    assert images_of(cluster(version="3.0.0"), running, OWN).broker == "registry.example:5000/fairlead:3.0.0"
    named = cluster(image="mine:4", version="3.0.0", etcd={"managed": {"image": "mine-etcd:4"}})
    assert images_of(named, running, OWN) == Images("mine:4", "mine-etcd:4")


def test_the_newest_pod_gives_the_image_while_its_set_is_recreated() -> None:
    """The image of the newest pod is kept while the StatefulSet is recreated."""
    away = Observed(
        now=NOW,
        pods=(
            pod(0, image="fairlead:1", created="2026-05-04T11:00:00Z"),
            pod(1, image="fairlead:0", created="2026-05-04T10:00:00Z"),
        ),
        etcd_image="etcd:1",
    )

    assert images_of(cluster(), away, OWN) == Images("fairlead:1", "etcd:1")


def test_an_image_that_starts_nowhere_is_given_up_with_its_name() -> None:
    """An image with which no pod starts is replaced by the running image, or by the operator's own in a new Cluster."""
    sets = (stateful_set(3, image="fairlead:bad"),)
    bad = pod(
        0, image="fairlead:bad", stuck="ImagePullBackOff: no such image", created="2026-05-04T12:00:00Z"
    )
    good = pod(1, image="fairlead:1", created="2026-05-04T11:00:00Z")
    served = cluster().model_copy(update={"status": ClusterStatus(cluster_id="known")})

    def broker(of: Cluster, *pods: ObservedPod) -> str:
        return images_of(of, Observed(now=NOW, sets=sets, pods=pods), OWN).broker

    assert broker(cluster(), bad, good) == "fairlead:1"
    assert broker(cluster(image="fairlead:bad"), bad, good) == "fairlead:bad"
    assert broker(cluster(), bad, replace(good, image="fairlead:bad")) == "fairlead:bad"
    assert broker(cluster(), good) == "fairlead:bad"
    assert broker(served, bad) == "fairlead:bad"
    assert broker(cluster(), bad) == OWN.broker


def test_an_external_etcd_has_no_image_to_name() -> None:
    """An external etcd is shown with the operator's own image, although the image is not used."""
    external = cluster(etcd={"external": {"endpoints": ["http://etcd:2379"]}})

    assert images_of(external, Observed(now=NOW), OWN).etcd == "etcd:2"


@pytest.mark.parametrize(
    ("image", "tagged"),
    [
        ("fairlead", "fairlead:9"),
        ("fairlead:1", "fairlead:9"),
        ("host:5000/fairlead", "host:5000/fairlead:9"),
        ("host:5000/a/fairlead:1@sha256:00", "host:5000/a/fairlead:9"),
    ],
)
def test_a_tag_takes_the_place_of_tag_and_digest(image: str, tagged: str) -> None:
    """A tag replaces the tag and digest of an image, and the port of the registry is kept."""
    assert with_tag(image, "9") == tagged
