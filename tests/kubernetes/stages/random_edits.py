"""Random edits of a Cluster and its Topics, and the state that must follow each edit.

A `World` contains the requested state (`Wish`). Every edit changes both the requested state and the resources, or
directly changes an object that the operator created. Edits that must be refused or delayed name the expected condition
and the edit that undoes them; `wishes.py` compares the requested state with the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from cluster_words import a_cluster
from edit_stage import CLUSTER, EditStage
from fairlead import Admin
from fairlead.errors import FairleadError
from kube_client import Manifest

FIRST_TOPIC: Final = "first"
"""Topic with three replicas that is never deleted."""
REPLICAS_MIN, REPLICAS_MAX = 3, 5
TOPICS_MAX: Final = 8
SIZE_MAX: Final = 4
QUICK: Final = {"replica.lag.time.max.ms": "2000"}
FORBIDDEN_KEY: Final = "log.dirs"
REFUSED_TEMPLATE: Final = {"spec": {"containers": [{"name": "broker", "imagePullPolicy": "Perhaps"}]}}
CHILDREN: Final = (
    "service/main-bootstrap",
    "service/main-brokers",
    "configmap/main-config",
    "serviceaccount/main",
    "poddisruptionbudget/main-brokers",
    "networkpolicy/main-brokers",
)
Undo = Callable[[], None]


@dataclass(slots=True)
class TopicWish:
    """The requested state of a Topic, and the expected reason of its Ready condition."""

    partitions: int = 1
    replicas: int = 3
    config: dict[str, str] = field(default_factory=dict)
    policy: str = "Delete"
    topic: str | None = None
    """Name of the topic, if it differs from the resource's name."""
    cluster: str = "main"
    reason: str = "Available"

    def manifest(self, name: str) -> Manifest:
        """Return the resource."""
        spec: dict[str, Any] = {
            "clusterRef": {"name": self.cluster},
            "partitions": self.partitions,
            "replicas": self.replicas,
            "deletionPolicy": self.policy,
        }
        if self.config:
            # When an apply removes the last key of a map, the server turns the map into null, and refuses null.
            spec["config"] = dict(self.config)
        if self.topic is not None:
            spec["name"] = self.topic
        return {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Topic",
            "metadata": {"name": name},
            "spec": spec,
        }


@dataclass(slots=True)
class Wish:
    """The requested state."""

    replicas: int = 3
    size: int = 1
    config: dict[str, str] = field(default_factory=dict)
    memory: str = "64Mi"
    mark: str = "none"
    """Annotation of the pod template."""
    listener: str = "internal"
    policies: bool = True
    monitor: bool = True
    deletion: str = "Delete"
    topics: dict[str, TopicWish] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    """Topics that stay after their resource was deleted."""
    held: tuple[str, str] | None = None
    """Type and reason of the condition that reports why the operator makes no changes to the Cluster at present."""


class World:
    """The stage with its requested state. Edits use only `chance` as their source of randomness."""

    def __init__(self, stage: EditStage, chance: Random) -> None:
        """Apply a Cluster of three brokers and one Topic."""
        self.stage, self.chance, self.wish = stage, chance, Wish()
        self.undo: list[Undo] = []
        """Functions that undo the refused edits before the next edits."""
        self.disturbed = False
        """Whether another edit of this round removed brokers."""
        self.names = iter(range(1_000_000))
        self.apply()
        self.put_topic(FIRST_TOPIC, TopicWish(partitions=3))

    def apply(self, *, replicas: int | None = None, template: Manifest | None = None) -> None:
        """Apply the requested Cluster, with optional deviations."""
        wish = self.wish
        marked = {"metadata": {"annotations": {"example.com/mark": wish.mark}}}
        pool = {"resources": {"requests": {"memory": wish.memory}}, "template": template or marked}
        cluster = a_cluster(
            replicas or wish.replicas,
            size=f"{wish.size}Gi",
            pool=pool,
            etcd={"external": {"endpoints": list(self.stage.brokers.etcd)}},
            config={**QUICK, **wish.config},
            listeners={"data": {"type": wish.listener}},
            networkPolicy={"enabled": wish.policies},
            podMonitor={"enabled": wish.monitor},
            deletionPolicy=wish.deletion,
        )
        self.stage.api.apply(cluster, self.stage.namespace)

    def put_topic(self, name: str, topic: TopicWish) -> None:
        """Apply a Topic."""
        self.wish.topics[name] = topic
        self.stage.api.apply(topic.manifest(name), self.stage.namespace)

    def drop_topic(self, name: str) -> None:
        """Delete a Topic's resource."""
        topic = self.wish.topics.pop(name)
        if topic.policy == "Retain" and topic.reason == "Available":
            self.wish.kept.add(topic.topic or name)
        self.stage.api.delete(f"topics.fairlead.dev/{name}", self.stage.namespace)

    def annotate(self, annotations: dict[str, str | None]) -> None:
        """Annotate the Cluster."""
        self.stage.api.annotate(CLUSTER, self.stage.namespace, annotations)

    def some_topic(self) -> str | None:
        """Return the name of a random available Topic other than the first Topic."""
        names = [n for n, each in self.wish.topics.items() if each.reason == "Available" and n != FIRST_TOPIC]
        return self.chance.choice(names) if names else None

    def ask(self, call: Callable[[Admin], Any]) -> bool:
        """Send a change to the brokers; return False when the brokers refuse the change for now."""
        try:
            self.stage.brokers.ask(call)
        except FairleadError:
            return False
        return True

    @property
    def safe_to_lose_a_disk(self) -> bool:
        """Whether every topic has at least two replicas."""
        return not self.wish.kept and all(each.replicas > 1 for each in self.wish.topics.values())


# ------------------------------------------------------------------------------- the Cluster


def more_or_fewer_brokers(world: World) -> None:
    """Add or remove one or two brokers, whose replicas move to other brokers."""
    world.wish.replicas = world.chance.choice(
        [each for each in range(REPLICAS_MIN, REPLICAS_MAX + 1) if each != world.wish.replicas]
    )
    world.apply()


def too_few_brokers(world: World) -> None:
    """Request fewer brokers than a topic has replicas, which is refused."""
    if world.wish.replicas != REPLICAS_MIN:
        return more_or_fewer_brokers(world)
    world.wish.held = ("ScaleDownBlocked", "ReplicationFactor")
    world.apply(replicas=REPLICAS_MIN - 1)
    world.undo.append(world.apply)
    return None


def setting_without_restart(world: World) -> None:
    """Set or reset a key that brokers apply while they run."""
    if world.wish.config.pop("retention.ms", None) is None or world.chance.random() < 0.7:
        world.wish.config["retention.ms"] = str(world.chance.randint(100_000, 999_999))
    world.apply()


def setting_with_restart(world: World) -> None:
    """Set a key that brokers read at startup."""
    world.wish.config["num.io.threads"] = str(world.chance.randint(1, 16))
    world.apply()


def setting_that_is_forbidden(world: World) -> None:
    """Set a key that the operator skips with a warning, or remove this key."""
    if world.wish.config.pop(FORBIDDEN_KEY, None) is None:
        world.wish.config[FORBIDDEN_KEY] = "/elsewhere"
    world.apply()


def resources(world: World) -> None:
    """Change the memory requests."""
    world.wish.memory = f"{world.chance.randint(65, 256)}Mi"
    world.apply()


def template(world: World) -> None:
    """Change an annotation in the pod template."""
    world.wish.mark = f"m{next(world.names)}"
    world.apply()


def refused_template(world: World) -> None:
    """Set a template that the API server refuses."""
    world.wish.held = ("Warning", "ObjectsRefused")
    world.apply(template=REFUSED_TEMPLATE)
    world.undo.append(world.apply)


def larger_disks(world: World) -> None:
    """Enlarge the volumes."""
    world.wish.size = min(SIZE_MAX, world.wish.size + 1)
    world.apply()


def pause(world: World) -> None:
    """Pause the Cluster, with an edit that waits for the end of the pause."""
    world.annotate({"fairlead.dev/paused": "true"})
    world.wish.held = ("ReconciliationPaused", "Annotation")
    world.chance.choice((setting_without_restart, resources, larger_disks))(world)
    world.undo.append(partial(world.annotate, {"fairlead.dev/paused": None}))


def no_restarts(world: World) -> None:
    """Request a change that needs restarts while restarts are forbidden."""
    world.annotate({"fairlead.dev/no-restarts": "true"})
    world.wish.held = ("RollBlocked", "RestartsSuspended")
    template(world)
    world.undo.append(partial(world.annotate, {"fairlead.dev/no-restarts": None}))


def listener(world: World) -> None:
    """Change the type of a listener."""
    others = [each for each in ("internal", "nodeport", "loadbalancer") if each != world.wish.listener]
    world.wish.listener = world.chance.choice(others)
    world.apply()


def network_policies(world: World) -> None:
    """Switch network policies on or off."""
    world.wish.policies = not world.wish.policies
    world.apply()


def pod_monitor(world: World) -> None:
    """Switch on or off a PodMonitor, a kind that this API server lacks."""
    world.wish.monitor = not world.wish.monitor
    world.apply()


def deletion_policy(world: World) -> None:
    """Change whether objects are kept when the Cluster is deleted."""
    world.wish.deletion = "Retain" if world.wish.deletion == "Delete" else "Delete"
    world.apply()


def restart_all(world: World) -> None:
    """Request a manual roll."""
    world.annotate({"fairlead.dev/restart": "weekly"})


# ------------------------------------------------------------- changes without the operator


def delete_a_child(world: World) -> None:
    """Delete a random object that the operator created."""
    world.stage.api.delete(world.chance.choice(CHILDREN), world.stage.namespace)


def delete_the_set(world: World) -> None:
    """Delete the StatefulSet, with or without its pods."""
    orphan = world.chance.random() < 0.6
    world.disturbed |= not orphan
    world.stage.api.delete(
        "statefulset/main-a", world.stage.namespace, propagation="Orphan" if orphan else "Background"
    )


def alter_a_child(world: World) -> None:
    """Change, as a person might, a field that the operator sets."""
    choices: list[tuple[str, Manifest]] = [
        ("poddisruptionbudget/main-brokers", {"spec": {"maxUnavailable": 2}}),
        ("service/main-bootstrap", {"spec": {"selector": {"fairlead.dev/cluster": "other"}}}),
        ("service/main-brokers", {"spec": {"publishNotReadyAddresses": False}}),
        ("configmap/main-config", {"data": {"broker.yaml": "{}"}}),
        ("statefulset/main-a", {"metadata": {"labels": {"fairlead.dev/pool": "b"}}}),
    ]
    name, patch = world.chance.choice(choices)
    if world.stage.api.get(name, world.stage.namespace):
        world.stage.api.patch(name, world.stage.namespace, patch)


def delete_a_pod(world: World) -> None:
    """Delete a broker's pod, as a person might."""
    world.disturbed = True
    world.stage.api.delete(f"pod/main-a-{world.chance.randrange(REPLICAS_MIN)}", world.stage.namespace)


def empty_a_disk(world: World) -> None:
    """Delete a broker's pod and claim."""
    if not world.safe_to_lose_a_disk:
        return restart_all(world)
    pod = f"pod/main-a-{world.chance.randrange(REPLICAS_MIN)}"
    if world.stage.api.get(pod, world.stage.namespace):
        mark = {"fairlead.dev/delete-pod-and-claim": "true"}
        world.stage.api.annotate(pod, world.stage.namespace, mark)
    return None


def drift_of_brokers(world: World) -> None:
    """Change, directly at the brokers, values that the resources set."""
    name = world.some_topic()
    config = {"segment.ms": world.chance.randint(1_000_000, 9_000_000)}
    if name is not None and world.chance.random() < 0.6:
        world.ask(partial(Admin.alter_topic, name=name, config=config))
    elif name is not None and world.chance.random() < 0.5:
        world.ask(partial(Admin.delete_topic, name=name))
    elif "retention.ms" in world.wish.config:
        world.ask(partial(Admin.alter_cluster_config, config={"retention.ms": 77_777}))


# ---------------------------------------------------------------------------------- Topics


def new_topic(world: World) -> None:
    """Create a Topic, or delete one when there are many."""
    if len(world.wish.topics) >= TOPICS_MAX:
        return gone_topic(world)
    chance = world.chance
    wanted = TopicWish(
        partitions=chance.randint(1, 4),
        replicas=chance.randint(1, 3),
        config={"retention.ms": str(chance.randint(60_000, 99_999))} if chance.random() < 0.5 else {},
        policy=chance.choice(("Delete", "Delete", "Retain")),
    )
    return world.put_topic(f"topic-{next(world.names)}", wanted)


def altered_topic(world: World) -> None:
    """Add partitions or change settings of a Topic."""
    name = world.some_topic()
    if name is None:
        return new_topic(world)
    topic, chance = world.wish.topics[name], world.chance
    topic.partitions += chance.randint(0, 2)
    topic.config = {"segment.ms": str(chance.randint(1_000_000, 9_000_000))} if chance.random() < 0.7 else {}
    return world.put_topic(name, topic)


def more_or_fewer_replicas(world: World) -> None:
    """Change the replication factor of a Topic."""
    name = world.some_topic()
    if name is None:
        return new_topic(world)
    topic = world.wish.topics[name]
    topic.replicas = world.chance.choice([each for each in (1, 2, 3) if each != topic.replicas])
    return world.put_topic(name, topic)


def gone_topic(world: World) -> None:
    """Delete a Topic, and its topic if its policy says so."""
    name = world.some_topic()
    return new_topic(world) if name is None else world.drop_topic(name)


def impossible_topic(world: World) -> None:
    """Create an invalid Topic, which reports the reason and is repaired or deleted later."""
    name, chance = f"topic-{next(world.names)}", world.chance
    odd = {"retention.ms": "soon"}
    wanted = chance.choice(
        [
            TopicWish(replicas=REPLICAS_MAX + 1, reason="ReplicationFactorTooLarge"),
            TopicWish(config=odd, reason="InvalidConfig"),
            TopicWish(topic=FIRST_TOPIC, partitions=7, reason="ResourceConflict"),
            TopicWish(cluster="nowhere", reason="ClusterNotFound"),
        ]
    )
    world.put_topic(name, wanted)
    if wanted.topic or wanted.cluster != "main" or chance.random() < 0.3:
        world.undo.append(partial(world.drop_topic, name))
    else:
        world.undo.append(partial(world.put_topic, name, TopicWish()))


ON_CLUSTER: Final = (
    more_or_fewer_brokers,
    setting_without_restart,
    setting_with_restart,
    setting_that_is_forbidden,
    resources,
    template,
    larger_disks,
    listener,
    network_policies,
    pod_monitor,
    deletion_policy,
    restart_all,
)
HOLDING: Final = (too_few_brokers, refused_template, pause, no_restarts)
"""Edits that keep the operator from changing the Cluster for now; each of these edits is the last edit of its round."""
BEHIND: Final = (
    delete_a_child,
    delete_a_child,
    delete_the_set,
    alter_a_child,
    alter_a_child,
    delete_a_pod,
    empty_a_disk,
    drift_of_brokers,
)
ON_TOPICS: Final = (
    new_topic,
    new_topic,
    altered_topic,
    altered_topic,
    more_or_fewer_replicas,
    gone_topic,
    impossible_topic,
)


def some_edits(world: World, count: int) -> list[str]:
    """Undo the refused edits, and make `count` edits together; return the list of edits."""
    done = []
    world.disturbed, world.wish.held = False, None
    for undo in world.undo:
        undo()
        done.append("undo")
    world.undo.clear()
    for _ in range(count):
        group = world.chance.choices((ON_CLUSTER, HOLDING, BEHIND, ON_TOPICS), weights=(9, 3, 6, 8))[0]
        edit = world.chance.choice(group)
        edit(world)
        done.append(edit.__name__)
        if world.wish.held:
            break
    return done
