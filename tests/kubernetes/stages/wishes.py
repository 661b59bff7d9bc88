"""Comparison of a Cluster and its Topics with a `Wish`, on the API server and at the brokers."""

from __future__ import annotations

from functools import partial
from typing import Any

from broker_processes import BrokerProcesses
from cluster_words import BROKERS, condition_of, is_done
from edit_stage import EditStage
from fairlead import Admin
from fairlead.errors import FairleadError
from fairlead_api.bodies.metadata import TopicDescription
from kube_client import Manifest
from random_edits import FORBIDDEN_KEY, Wish, World
from topic_stage import ready_reason

SERVICE_TYPES = {"internal": None, "nodeport": "NodePort", "loadbalancer": "LoadBalancer"}
BLOCKS = ("RollBlocked", "ScaleDownBlocked", "StorageBlocked", "InvalidSpec", "ReconciliationPaused")
ORDERS = {"fairlead.dev/restart", "fairlead.dev/delete-pod-and-claim"}
HASHES = ("fairlead.dev/pod-spec-hash", "fairlead.dev/restart-config-hash")


def differences(world: World) -> str:
    """Return the first difference from the requested state, or an empty string."""
    stage, wish = world.stage, world.wish
    cluster = stage.cluster()
    if wish.held is not None:
        told = _differs(held(cluster, *wish.held), f"the condition {wish.held} is not there")
        return told or ("" if wish.held[0] == "ReconciliationPaused" else of_topics(stage, wish))
    return (
        of_cluster(cluster, wish)
        or of_orders(stage, cluster)
        or of_pods(stage, wish)
        or of_children(stage, wish)
        or of_topics(stage, wish)
        or of_brokers(stage.brokers, wish)
    )


def held(cluster: Manifest, type_: str, reason: str) -> bool:
    """Return whether a Cluster reports the reason why it is not changed."""
    conditions = (cluster.get("status") or {}).get("conditions") or []
    return any((each["type"], each["reason"]) == (type_, reason) for each in conditions)


def of_cluster(cluster: Manifest, wish: Wish) -> str:
    """Compare the status of the Cluster."""
    said = f"the Cluster says {cluster.get('status')}"
    if not is_done(cluster):
        return f"not done: {said}"
    for type_ in BLOCKS:
        if condition_of(cluster, type_):
            return f"{type_}: {said}"
    warning = condition_of(cluster, "Warning").get("reason")
    expected = "ForbiddenConfig" if FORBIDDEN_KEY in wish.config else "SecurityOpen"
    if warning != expected:
        return f"the warning is {warning}, not {expected}: {said}"
    [pool] = cluster["status"]["pools"]
    counts = (pool["replicas"], pool["ready"], pool["updated"])
    return _differs(counts == (wish.replicas,) * 3, f"{wish.replicas} are requested: {said}")


def of_orders(stage: EditStage, cluster: Manifest) -> str:
    """Find restart orders that are not completed yet and not reported by a condition yet."""
    objects = [cluster, *stage.api.list("pods", stage.namespace, BROKERS)]
    left = [
        each["metadata"]["name"]
        for each in objects
        if ORDERS & (each["metadata"].get("annotations") or {}).keys()
        or "deletionTimestamp" in each["metadata"]
    ]
    return _differs(not left, f"still to be restarted: {left}")


def of_pods(stage: EditStage, wish: Wish) -> str:
    """Compare the StatefulSet, its pods and claims."""
    live = stage.api.get("statefulset/main-a", stage.namespace)
    if live is None or live["spec"]["replicas"] != wish.replicas:
        return f"the set is {live and live['spec']['replicas']}"
    [claim] = live["spec"]["volumeClaimTemplates"]
    if claim["spec"]["resources"]["requests"]["storage"] != f"{wish.size}Gi":
        return f"claims of the set are {claim['spec']}"
    annotations = live["spec"]["template"]["metadata"]["annotations"]
    pods = stage.api.list("pods", stage.namespace, BROKERS)
    if len(pods) != wish.replicas:
        return f"there are {len(pods)} pods"
    for pod in pods:
        [container] = pod["spec"]["containers"]
        marks = pod["metadata"]["annotations"]
        if (
            marks["example.com/mark"] != wish.mark
            or container["resources"]["requests"]["memory"] != wish.memory
        ):
            return f"{pod['metadata']['name']} is an old pod"
        if any(marks[each] != annotations[each] for each in HASHES):
            return f"{pod['metadata']['name']} has other hashes than the set"
    for claim in stage.api.list("persistentvolumeclaims", stage.namespace, BROKERS)[: wish.replicas]:
        if int(claim["metadata"]["name"].rpartition("-")[2]) >= wish.replicas:
            continue
        asked = claim["spec"]["resources"]["requests"]["storage"]
        if asked != f"{wish.size}Gi":
            return f"{claim['metadata']['name']} asks for {asked}"
    return ""


def of_children(stage: EditStage, wish: Wish) -> str:
    """Compare the remaining objects of the Cluster."""
    get = stage.api.get
    bootstrap = get("service/main-bootstrap", stage.namespace) or {"spec": {}}
    external = get("service/main-external", stage.namespace) or {"spec": {}}
    brokers = get("service/main-brokers", stage.namespace) or {"spec": {}}
    budget = get("poddisruptionbudget/main-brokers", stage.namespace) or {"spec": {}}
    file = (get("configmap/main-config", stage.namespace) or {"data": {}})["data"].get("broker.yaml", "")
    live = get("statefulset/main-a", stage.namespace) or {"metadata": {}}
    threads = wish.config.get("num.io.threads")
    owned = all(
        bool(each.get("metadata", {}).get("ownerReferences")) == (wish.deletion == "Delete")
        for each in (bootstrap, brokers, budget, live)
    )
    truths: dict[str, Any] = {
        "type of the external Service": external["spec"].get("type") == SERVICE_TYPES[wish.listener],
        "its selector": bootstrap["spec"].get("selector", {}).get("fairlead.dev/cluster") == "main",
        "the headless Service": brokers["spec"].get("publishNotReadyAddresses") is True,
        "the budget": budget["spec"].get("maxUnavailable") == 1,
        "the brokers' file": "cluster" in file
        and (threads is None or f"num.io.threads: '{threads}'" in file.replace('"', "'")),
        "the account": get("serviceaccount/main", stage.namespace),
        "the set's labels": live["metadata"].get("labels", {}).get("fairlead.dev/pool") == "a",
        "network policies": bool(get("networkpolicy/main-brokers", stage.namespace)) == wish.policies,
        "owners": owned,
    }
    return ", ".join(f"wrong: {what}" for what, holds in truths.items() if not holds)


def of_topics(stage: EditStage, wish: Wish) -> str:
    """Compare the status of the Topics."""
    topics = {
        each["metadata"]["name"]: each for each in stage.api.list("topics.fairlead.dev", stage.namespace)
    }
    if topics.keys() != wish.topics.keys():
        return f"there are the Topics {sorted(topics)}, and {sorted(wish.topics)} are requested"
    for name, wanted in wish.topics.items():
        reason = ready_reason(topics[name])
        if reason != wanted.reason:
            return f"Topic {name} is {reason}, not {wanted.reason}: {topics[name].get('status')}"
    return ""


def of_brokers(brokers: BrokerProcesses, wish: Wish) -> str:
    """Compare the state of the brokers."""
    wanted = {each.topic or name: each for name, each in wish.topics.items() if each.reason == "Available"}
    try:
        known = brokers.ask(lambda admin: admin.brokers())
        config = brokers.ask(lambda admin: admin.cluster_config())
        metadata = brokers.ask(lambda admin: admin.metadata())
        details = {name: brokers.ask(partial(Admin.describe_topic, name=name)) for name in wanted}
    except FairleadError as error:
        return f"brokers: {error}"
    ids = sorted(each.id for each in known if each.state == "running" and not each.cordoned)
    if ids != list(range(wish.replicas)) or len(known) != wish.replicas:
        return f"brokers: {known}"
    retention = wish.config.get("retention.ms")
    entry = config["retention.ms"]
    if retention is not None and entry.value != retention:
        return f"retention.ms of the cluster is {entry}"
    named = {each.name for each in metadata.topics if not each.name.startswith("__")}
    if named != wanted.keys() | wish.kept:
        return f"topics of the brokers: {sorted(named)}, requested {sorted(wanted)} and {sorted(wish.kept)}"
    for topic in metadata.topics:
        if topic.name not in wanted:
            continue
        counts = {len(each.replicas) for each in topic.partitions}
        if counts != {wanted[topic.name].replicas} or any(
            len(each.isr) < len(each.replicas) for each in topic.partitions
        ):
            return f"replicas of {topic}"
        if len(topic.partitions) != wanted[topic.name].partitions:
            return f"partitions of {topic.name}: {len(topic.partitions)}"
        if own_config(details[topic.name]) != wanted[topic.name].config:
            return f"configuration of {topic.name}: {own_config(details[topic.name])}"
    return ""


def below_minimum(brokers: BrokerProcesses) -> list[str]:
    """Return the partitions with too few in-sync replicas for acks=all although they have replicas to spare."""
    try:
        metadata = brokers.ask(lambda admin: admin.metadata())
    except FairleadError:
        return []
    return [
        f"{topic.name}-{each.partition}: {each}"
        for topic in metadata.topics
        for each in topic.partitions
        if len(each.isr) < each.min_isr < len(each.replicas)
    ]


def own_config(topic: TopicDescription) -> dict[str, str]:
    """Return the configuration of a topic's own level."""
    return {key: entry.value for key, entry in topic.config.items() if entry.source == "topic"}


def _differs(holds: bool, words: str) -> str:
    return "" if holds else words
