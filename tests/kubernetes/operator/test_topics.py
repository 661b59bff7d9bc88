"""Topics on a real API server and real brokers: the requested state is reached and reported."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import pytest

from fairlead import Admin
from figures import keep_figures
from kube_client import Manifest
from kubernetes_under_test import Kubernetes
from topic_stage import Stage, condition_of, ready_reason, running_stage, status_of


@pytest.fixture(scope="module")
def stage(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield brokers, an operator and one Cluster for all tests of this file; tests may use other namespaces."""
    with running_stage(kubernetes, tmp_path_factory.mktemp("stage"), namespaces=11) as running:
        yield running


def test_a_topic_is_created_and_altered(stage: Stage) -> None:
    """A topic is created and altered by its resource, with partitions, replicas and configuration."""
    namespace = stage.common
    stage.topic(namespace, "flights", partitions=3, replicas=2, config={"retention.ms": "60000"})
    created = stage.wait(namespace, "flights")
    topic = stage.brokers.topic("flights")
    stage.topic(namespace, "flights", partitions=5, replicas=2, config={"segment.ms": "1000000"})
    altered = stage.wait(namespace, "flights")
    after = stage.brokers.topic("flights")

    assert topic is not None
    assert (topic.partitions, topic.replication_factor) == (3, 2)
    assert created["status"]["topicId"] == topic.topic_id
    assert created["metadata"]["finalizers"] == ["fairlead.dev/topic"]
    assert after is not None
    assert (after.topic_id, after.partitions) == (topic.topic_id, 5)
    assert stage.brokers.own_config("flights") == {"segment.ms": "1000000"}
    assert (altered["status"]["partitions"], altered["status"]["replicas"]) == (5, 2)
    assert stage.events(namespace, "flights") >= {"TopicCreated", "ConfigChanged", "PartitionsAdded"}


def test_what_others_change_is_put_back_but_for_unmanaged_keys(stage: Stage) -> None:
    """A topic's changed key is restored, an unset key is reset, and an unmanaged key is kept."""
    namespace = stage.common
    stage.topic(namespace, "drift", config={"retention.ms": "60000"}, unmanagedConfig=["segment.ms"])
    stage.wait(namespace, "drift")
    changed = {"retention.ms": 1000, "max.message.bytes": 5000, "segment.ms": 777_777}
    stage.brokers.ask(lambda admin: admin.alter_topic("drift", config=changed))
    stage.wait_event(namespace, "drift", "ConfigChanged")

    assert stage.brokers.own_config("drift") == {"retention.ms": "60000", "segment.ms": "777777"}


def test_a_topic_with_a_write_quorum_is_created_altered_and_restored(stage: Stage) -> None:
    """The write quorum of a topic follows its resource, which brokers refuse below a majority or with the other mode.

    The topic keeps its mode, which is fixed at creation, if the resource no longer contains the mode.
    """
    namespace, fixed = stage.common, {"replication.mode": "quorum"}
    refused = []
    stage.topic(namespace, "votes", replicas=3, config={**fixed, "quorum.write": "2"})
    stage.wait(namespace, "votes")
    created = stage.brokers.own_config("votes")
    stage.brokers.ask(lambda admin: admin.alter_topic("votes", config={"quorum.write": 3}))
    stage.wait_event(namespace, "votes", "ConfigChanged", "quorum.write=2")
    restored = stage.brokers.own_config("votes")
    stage.topic(namespace, "votes", replicas=3, config={**fixed, "quorum.write": "3"})
    stage.wait(namespace, "votes")
    for config in ({**fixed, "quorum.write": "1"}, {"replication.mode": "isr"}):
        stage.topic(namespace, "votes", replicas=3, config=config)
        refused.append(condition_of(stage.wait(namespace, "votes", "InvalidConfig"), "Ready"))
    held = stage.brokers.own_config("votes")
    stage.topic(namespace, "votes", replicas=3, config={"retention.ms": "60000"})
    stage.wait(namespace, "votes")

    assert created == restored == {**fixed, "quorum.write": "2"}
    assert "quorum.write" in refused[0]["message"]
    assert "replication.mode" in refused[1]["message"]
    assert held == {**fixed, "quorum.write": "3"}
    assert stage.brokers.own_config("votes") == {**fixed, "retention.ms": "60000"}


def test_a_topic_that_is_there_is_adopted_with_its_data(stage: Stage) -> None:
    """A topic that exists is adopted with its id, data and additional partitions, and its other values are changed."""
    namespace = stage.common
    before = stage.brokers.ask(
        lambda admin: admin.create_topic("adopted", partitions=4, config={"segment.ms": 777_777})
    )
    stage.topic(namespace, "elsewhere", name="adopted", partitions=2, config={"retention.ms": "60000"})
    shrunk = stage.wait(namespace, "elsewhere", "PartitionsNotReducible")
    own = stage.brokers.own_config("adopted")
    stage.topic(namespace, "elsewhere", name="adopted", partitions=4, config={"retention.ms": "60000"})
    adopted = stage.wait(namespace, "elsewhere")

    assert own == {"retention.ms": "60000"}
    assert "4 partitions" in condition_of(shrunk, "Ready")["message"]
    assert adopted["status"]["topicName"] == "adopted"
    assert adopted["status"]["topicId"] == before.topic_id
    assert "TopicAdopted" in stage.events(namespace, "elsewhere")


def test_a_deleted_topic_is_made_again_with_a_warning(stage: Stage) -> None:
    """A topic that was deleted is created again with a warning, and the status has the new id."""
    namespace = stage.common
    stage.topic(namespace, "phoenix")
    first = stage.wait(namespace, "phoenix")["status"]["topicId"]
    stage.brokers.ask(lambda admin: admin.delete_topic("phoenix"))
    again = stage.kubernetes.api.wait(
        "topics.fairlead.dev/phoenix",
        namespace,
        lambda topic: ready_reason(topic) == "Available" and status_of(topic)["topicId"] != first,
    )
    topic = stage.brokers.topic("phoenix")

    assert topic is not None
    assert topic.topic_id == again["status"]["topicId"]
    assert stage.wait_event(namespace, "phoenix", "TopicRecreated")["type"] == "Warning"


@pytest.mark.scenario
def test_the_replication_factor_goes_up_and_down(stage: Stage) -> None:
    """A topic's replication factor changes by reassignments, spread evenly over racks, with progress in the status."""
    namespace = stage.common
    stage.topic(namespace, "copies", partitions=6, replicas=2)
    stage.wait(namespace, "copies")
    two = stage.brokers.replicas("copies")
    stage.topic(namespace, "copies", partitions=6, replicas=3, config={"min.insync.replicas": "3"})
    moving = stage.kubernetes.api.wait(
        "topics.fairlead.dev/copies", namespace, lambda topic: "reassignment" in status_of(topic)
    )
    stage.wait_moved(namespace, "copies", replicas=3)
    three = stage.brokers.replicas("copies")
    minimum = stage.brokers.own_config("copies")
    stage.topic(namespace, "copies", partitions=6, replicas=1)
    done = stage.wait_moved(namespace, "copies", replicas=1)
    one = stage.brokers.replicas("copies")

    assert moving["status"]["reassignment"]["partitionsTotal"] == 6, condition_of(moving, "Ready")
    assert condition_of(moving, "Ready")["status"] == "True", condition_of(moving, "Ready")
    assert condition_of(moving, "Progressing")["reason"] == "Reassigning"
    assert minimum == {"min.insync.replicas": "3"}
    assert [sorted(replicas) for replicas in three] == [[1, 2, 3]] * 6
    assert [each[0] for each in one] == [each[0] for each in three] == [each[0] for each in two]
    assert condition_of(done, "Progressing")["status"] == "False"
    assert stage.events(namespace, "copies") >= {"ReassignmentStarted", "ReassignmentFinished"}


@pytest.mark.scenario
def test_a_restarted_operator_knows_whose_topics_are(stage: Stage) -> None:
    """A topic of two resources belongs to the first, even after a restart, and to the second once the first is deleted.

    A topic that another program deleted and created again, unnoticed by the operator, is not deleted with its resource.
    """
    home, guest = stage.namespace(), stage.namespace()
    cluster = stage.cluster(home, topicNamespaces=[guest])
    stage.topic(home, "renewed")
    stage.topic(home, "shared", partitions=2)
    held = stage.wait(home, "shared")["status"]["topicId"]
    stage.wait(home, "renewed")
    stage.topic(guest, "mine", cluster=cluster, name="shared", partitions=3)
    loser = stage.wait(guest, "mine", "ResourceConflict")
    stage.stop_operator()
    stage.brokers.ask(lambda admin: admin.delete_topic("renewed"))
    renewed = stage.brokers.ask(lambda admin: admin.create_topic("renewed"))
    stage.kubernetes.api.delete("topics.fairlead.dev/renewed", home)
    stage.restart_operator()
    stage.topic(guest, "mine", cluster=cluster, name="shared", partitions=4)
    still = stage.wait(guest, "mine", "ResourceConflict")
    stage.kubernetes.api.delete("topics.fairlead.dev/shared", home)
    heir = stage.wait(guest, "mine")

    assert f"{home}/shared" in condition_of(loser, "Ready")["message"]
    assert "topicId" not in still["status"]
    assert "finalizers" not in still["metadata"]
    assert (heir["status"]["topicId"], heir["status"]["partitions"]) == (held, 4)
    for name in ("shared", "renewed"):
        stage.wait_gone(home, name)
    topic = stage.brokers.topic("renewed")
    assert topic is not None
    assert topic.topic_id == renewed.topic_id


def test_what_the_cluster_does_not_allow_is_said(stage: Stage) -> None:
    """A Topic has a condition for an unknown Cluster, a forbidden namespace, a refused key or too many replicas."""
    namespace, foreign = stage.namespace(), stage.namespace()
    stage.topic(namespace, "early", replicas=1)
    early = stage.wait(namespace, "early", "ClusterNotFound")
    cluster = stage.cluster(namespace)
    stage.topic(foreign, "stranger", cluster=cluster)
    stage.wait(foreign, "stranger", "NamespaceNotAllowed")
    stage.topic(namespace, "odd", config={"retention.ms": "soon"})
    odd = stage.wait(namespace, "odd", "InvalidConfig")
    stage.topic(namespace, "wide", replicas=4)
    stage.wait(namespace, "wide", "ReplicationFactorTooLarge")
    stage.topic(namespace, "strict", replicas=1, config={"min.insync.replicas": "2"})
    strict = stage.wait(namespace, "strict", "InvalidConfig")
    stage.cluster(namespace, topicNamespaces=[foreign])
    for place, name in ((namespace, "early"), (foreign, "stranger")):
        stage.wait(place, name)
    stage.topic(namespace, "odd", config={"retention.ms": "1000"})
    stage.wait(namespace, "odd")

    assert condition_of(early, "Ready")["status"] == "Unknown"
    assert "retention.ms" in condition_of(odd, "Ready")["message"]
    assert condition_of(strict, "Warning")["reason"] == "MinInsyncReplicasTooLarge"
    assert [stage.brokers.topic(name) for name in ("wide", "strict")] == [None, None]


def test_deletion_follows_the_policy(stage: Stage) -> None:
    """`deletionPolicy: Delete` sets a finalizer and deletes a topic with its resource; `Retain` keeps the topic."""
    namespace = stage.common
    for name, policy in (("going", "Delete"), ("staying", "Retain"), ("switched", "Delete")):
        stage.topic(namespace, name, deletionPolicy=policy)
        stage.wait(namespace, name)
    stage.topic(namespace, "switched", deletionPolicy="Retain")
    stage.kubernetes.api.wait(
        "topics.fairlead.dev/switched",
        namespace,
        lambda topic: "finalizers" not in (topic or {}).get("metadata", {}),
    )
    for name in ("going", "staying", "switched"):
        stage.kubernetes.api.delete(f"topics.fairlead.dev/{name}", namespace)
    for name in ("going", "staying", "switched"):
        stage.wait_gone(namespace, name)
    left = {name: stage.brokers.topic(name) is not None for name in ("going", "staying", "switched")}

    assert left == {"going": False, "staying": True, "switched": True}


@pytest.mark.scenario
def test_topics_are_released_when_their_cluster_is_deleted(stage: Stage) -> None:
    """A Topic can be removed after its Cluster, with its namespace, and even if brokers never answer."""
    first, whole, silent = stage.namespace(), stage.namespace(), stage.namespace()
    stage.cluster(first)
    stage.cluster(whole)
    unreachable: Manifest = {"name": "a", "firstBrokerId": 200, "replicas": 3, "storage": {"size": "1Gi"}}
    stage.cluster(silent, brokers=[unreachable])
    for namespace, name in ((first, "orphan"), (whole, "one"), (whole, "two")):
        stage.topic(namespace, name)
        stage.wait(namespace, name)
    stage.topic(silent, "never")
    stage.wait(silent, "never", "ClusterNotReady")
    stage.kubernetes.api.delete("clusters.fairlead.dev/main", first)
    stage.wait(first, "orphan", "ClusterNotFound")
    stage.kubernetes.api.delete("topics.fairlead.dev/orphan", first)
    for namespace in (whole, silent):
        stage.kubernetes.api.delete(f"namespace/{namespace}")
    stage.wait_gone(first, "orphan")
    for namespace, name in ((whole, "one"), (whole, "two"), (silent, "never")):
        stage.wait_gone(namespace, name)

    assert stage.brokers.topic("orphan") is not None


@pytest.mark.scenario
def test_nothing_is_written_when_nothing_changed(stage: Stage) -> None:
    """Resyncs do not write a Topic that is as requested, while they correct the drift of another Topic."""
    quiet, pulse = stage.namespace(), stage.common
    stage.cluster(quiet)
    for namespace, name in ((quiet, "quiet-1"), (quiet, "quiet-2"), (pulse, "pulse")):
        stage.topic(namespace, name, config={"retention.ms": "60000"})
    for namespace, name in ((quiet, "quiet-1"), (quiet, "quiet-2"), (pulse, "pulse")):
        stage.wait(namespace, name)
    mark = stage.kubernetes.audit_mark()
    for key in ("segment.ms", "max.message.bytes"):
        changed = {key: 777_777}
        stage.brokers.ask(functools.partial(Admin.alter_topic, name="pulse", config=changed))
        stage.wait_event(pulse, "pulse", "ConfigChanged", f"{key}=default")
    writes = stage.kubernetes.audit(since=mark, namespace=quiet, writes=True)
    told = [
        event for event in writes if event.body and event.body.get("regarding", {}).get("kind") == "Topic"
    ]

    assert [event for event in writes if event.resource.startswith("topics")] == []
    assert told == []


@pytest.mark.scenario
@pytest.mark.serial
def test_five_hundred_topics_at_once(stage: Stage, record_property: Callable[[str, object], None]) -> None:
    """Five hundred Topics are ready within a minute, and the operator's memory stays small."""
    namespace = stage.namespace()
    stage.cluster(namespace)
    stage.topic(namespace, "crowd-first")
    stage.wait(namespace, "crowd-first")
    began = time.monotonic()
    for number in range(500):
        stage.topic(namespace, f"crowd-{number}", replicas=3, config={"retention.ms": "60000"})
    stage.kubernetes.api.wait_list(
        "topics.fairlead.dev",
        namespace,
        lambda topics: sum(ready_reason(each) == "Available" for each in topics) == 501,
        seconds=90,
    )
    took, peak = time.monotonic() - began, stage.operator_memory_bytes()
    record_property("seconds", took)
    record_property("operator_peak_bytes", peak)
    keep_figures({"topics": 501, "seconds": round(took, 1), "operator_peak_mib": round(peak / 2**20, 1)})

    assert peak < 300 * 2**20
    assert took < 60


def test_pauses_hold_everything_but_deletion(stage: Stage) -> None:
    """A paused Topic, or a Topic of a paused Cluster, can only be deleted; other changes are made after the pause."""
    namespace = stage.namespace()
    stage.cluster(namespace)
    for name in ("resting", "waiting"):
        stage.topic(namespace, name)
        stage.wait(namespace, name)
    api = stage.kubernetes.api
    api.annotate("topics.fairlead.dev/resting", namespace, {"fairlead.dev/paused": "true"})
    stage.topic(namespace, "resting", partitions=3)
    resting = api.wait(
        "topics.fairlead.dev/resting", namespace, lambda topic: condition_of(topic, "ReconciliationPaused")
    )
    api.annotate("clusters.fairlead.dev/main", namespace, {"fairlead.dev/paused": "true"})
    stage.topic(namespace, "waiting", partitions=2)
    waiting = api.wait(
        "topics.fairlead.dev/waiting",
        namespace,
        lambda topic: condition_of(topic, "Ready").get("reason") == "ClusterPaused",
    )
    held = [stage.brokers.topic(name) for name in ("resting", "waiting")]
    api.annotate("clusters.fairlead.dev/main", namespace, {"fairlead.dev/paused": None})
    stage.wait(namespace, "waiting")
    api.delete("topics.fairlead.dev/resting", namespace)
    stage.wait_gone(namespace, "resting")
    grown = stage.brokers.topic("waiting")

    assert [topic.partitions for topic in held if topic is not None] == [1, 1]
    for told in (resting, waiting):
        assert told["status"]["observedGeneration"] < told["metadata"]["generation"]
    assert grown is not None
    assert grown.partitions == 2
    assert stage.brokers.topic("resting") is None
