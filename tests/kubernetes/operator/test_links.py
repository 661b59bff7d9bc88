"""Links on a real API server: a real source with access rules, and real brokers that mirror its topics."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.blocking import Admin, Producer
from fairlead.testing import SecureCluster, running_cluster
from kube_client import Manifest
from kubernetes_under_test import Kubernetes
from topic_stage import Stage, condition_of, ready_reason, running_stage, status_of

CREDENTIALS = "main-link-credentials"


@pytest.fixture(scope="module")
def stage(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield brokers, an operator and one Cluster for all tests of this file."""
    with running_stage(kubernetes, tmp_path_factory.mktemp("stage"), namespaces=1) as running:
        yield running


@pytest.fixture(scope="module")
def source() -> Iterator[SecureCluster]:
    """Yield a cluster that refuses callers without a token, with two topics."""
    with running_cluster(secure=True) as cluster:
        with Admin(**cluster.arguments) as admin:
            for topic in ("orders", "trips"):
                admin.create_topic(topic, partitions=2)
        yield cluster


def link(stage: Stage, source: SecureCluster, **spec: Any) -> None:
    """Apply the Link `east` of the Cluster `main`."""
    stage.kubernetes.api.apply(
        {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Link",
            "metadata": {"name": "east"},
            "spec": {
                "clusterRef": {"name": "main"},
                "source": {"bootstrap": [source.bootstrap], "credentialsSecretRef": {"name": "east-link"}},
                "topics": {"include": ["orders"]},
                **spec,
            },
        },
        stage.common,
    )


def wait(stage: Stage, holds: Callable[[Manifest], bool]) -> Manifest:
    """Wait until the status of the Link, for its current spec, meets a condition; return the Link."""

    def current(found: Manifest | None) -> bool:
        return found is not None and ready_reason(found) is not None and holds(found)

    return stage.kubernetes.api.wait("links.fairlead.dev/east", stage.common, current)


def secret_keys(stage: Stage) -> dict[str, str]:
    """Return the content of the Secret that brokers mount."""
    return (stage.kubernetes.api.get(f"secret/{CREDENTIALS}", stage.common) or {}).get("data") or {}


def mount(stage: Stage) -> None:
    """Write the Secret into the folder of the brokers, as a kubelet does."""
    for name, text in secret_keys(stage).items():
        Path(stage.brokers.link_credentials / name).write_bytes(base64.b64decode(text))


def test_a_link_mirrors_promotes_and_leaves_the_topics_to_their_resources(
    stage: Stage, source: SecureCluster
) -> None:
    """Mirrors follow the spec, a Topic waits for the promotion of its mirror, and a Link ends without its mirrors."""
    api, namespace = stage.kubernetes.api, stage.common
    with Producer(**source.arguments) as producer:
        for number in range(20):
            producer.send("orders", b"%d" % number)
    link(stage, source)
    wait(stage, lambda found: ready_reason(found) == "CredentialsMissing")
    data = {"token": source.token_file, "ca.crt": source.ca_file}
    encoded = {name: base64.b64encode(path.read_bytes()).decode() for name, path in data.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "east-link"}, "data": encoded}
    api.apply(secret, namespace)
    unread = wait(stage, lambda found: ready_reason(found) == "SourceUnreachable")
    mount(stage)
    copied = wait(stage, lambda found: status_of(found).get("lagRecords") == 0)
    stage.topic(namespace, "orders", partitions=2, config={"retention.ms": "86400000"})
    stage.wait(namespace, "orders", "OwnedByLink")
    link(stage, source, topics={"include": ["*"]}, bytesPerSecond="10Mi")
    both = wait(stage, lambda found: (status_of(found).get("topics") or {}).get("mirroring") == 2)
    link(stage, source, topics={"include": ["*"]}, promote={"topics": ["orders"]})
    promoted = wait(stage, lambda found: condition_of(found, "Promoted").get("status") == "True")
    stage.wait(namespace, "orders")
    limits = stage.brokers.ask(lambda admin: admin.describe_link("east")).bytes_per_second
    records = stage.brokers.ask(lambda admin: stored(admin, "orders"))
    api.delete("links.fairlead.dev/east", namespace)
    used = api.wait("links.fairlead.dev/east", namespace, is_in_use)
    stage.brokers.ask(lambda admin: admin.delete_topic("trips"))
    api.wait("links.fairlead.dev/east", namespace, lambda each: each is None)

    assert condition_of(unread, "SourceReachable")["status"] == "False"
    assert condition_of(copied, "SourceReachable")["status"] == "True"
    assert copied["metadata"]["finalizers"] == ["fairlead.dev/link"]
    assert ready_reason(both) == "Available"
    assert status_of(promoted)["topics"]["mirroring"] == 1
    assert limits is None
    assert records == 20
    assert stage.brokers.own_config("orders")["retention.ms"] == "86400000"
    assert "trips" in condition_of(used, "Ready")["message"]
    assert secret_keys(stage) == {}


def is_in_use(found: Manifest | None) -> bool:
    """Return whether the deletion of the Link waits for its mirrors."""
    return condition_of(found, "Ready").get("reason") == "LinkInUse"


async def stored(admin: Any, topic: str) -> int:
    """Return the number of committed records of a topic with two partitions."""
    return sum([(await admin.offsets(topic, each)).high_watermark for each in range(2)])
