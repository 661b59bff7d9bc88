"""Observed state of a Cluster, the input for its plan: pods, StatefulSets, claims, images, and its brokers' answers.

`reconcile/` lists the objects and calls the brokers; this module extracts the facts that the plan needs. All facts are
read from live objects: the operator stores no state except the status of the Cluster. The module must not depend on how
the objects were read.

`images_of` chooses the image of each pod: the image in the Cluster's spec, else the running image, else the default
image of the operator. A newer operator does not restart brokers only because its default images are newer: users choose
a release by `version` or `image`. An image that no pod has started does not count as running, so removing such an image
from the spec restores the previous image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from fairlead_api.bodies.metadata import BrokerDescription, Metadata
from fairlead_api.bodies.security import CertificateDescription
from fairlead_api.configuration import ConfigEntry
from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import (
    ANNOUNCED_ADDRESS_ANNOTATION,
    BROKER_CONTAINER,
    DATA_VOLUME,
    DELETE_POD_AND_CLAIM_ANNOTATION,
    ETCD_CONTAINER,
    ETCD_TRANSPORT_ANNOTATION,
    PAUSED_ANNOTATION,
    PEER_SCHEME_ANNOTATION,
    POD_INDEX_LABEL,
    POD_SPEC_HASH_ANNOTATION,
    POOL_LABEL,
    RESTART_ANNOTATION,
    RESTART_CONFIG_HASH_ANNOTATION,
    SECURITY_FLOOR_ANNOTATION,
    Manifest,
)
from fairlead_operator.render.inputs import Images

Object = Mapping[str, Any]

STUCK_REASONS: Final = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons in a container's `waiting` state that mean that the container will not start without a change."""
CREATE_FAILED: Final = "FailedCreate"
"""Reason in the Event on a StatefulSet whose pod or claim the API server refused."""
MESSAGE_CHARACTERS_MAX: Final = 500
CONSOLE_PATIENCE: Final = timedelta(minutes=2)
"""Time for which the console may have no ready pod before a warning, enough for a start and for a moved pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """The pod of a broker."""

    name: str
    uid: str
    pool: str
    broker: int
    created: str = ""
    """Creation time of the pod in Kubernetes' format, which sorts as text."""
    ready: bool = False
    terminating: bool = False
    pod_spec_hash: str = ""
    config_hash: str = ""
    restart_asked: str | None = None
    """Value of the restart annotation; None if the pod has no such annotation."""
    new_disk_asked: bool = False
    stuck: str | None = None
    """Reason why the pod will not become ready without a change; None if the pod might still become ready."""
    image: str = ""
    """Image in the spec of the pod, which is known even while the StatefulSet does not exist."""
    security_floor: str = "open"
    """Least strict security mode of the broker."""
    peer_scheme: str = ""
    """Scheme of the peer listener; empty for a pod without a certificate."""
    node_address: str = ""
    """Address of the pod's node; empty before the pod is assigned to a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSet:
    """The StatefulSet of a pool or of etcd; `pool` is empty for etcd."""

    name: str
    uid: str
    pool: str
    first_broker: int
    replicas: int
    settled: bool = True
    """Whether the StatefulSet controller has observed the newest template and will use it to recreate a deleted pod."""
    terminating: bool = False
    storage_size: str = ""
    storage_class: str | None = None
    pod_spec_hash: str = ""
    config_hash: str = ""
    image: str = ""
    """Image of the brokers or etcd members in the pod template."""
    peer_scheme: str = ""
    """Scheme of the peer listener in the pod template; empty for pods without a certificate."""
    security_floor: str = "open"
    """Least strict security mode of the brokers in the pod template."""
    etcd_transport: str = ""
    """Kinds of listeners of the etcd members, from the pod template; empty for members without TLS."""

    @property
    def brokers(self) -> range:
        """The ids of the brokers that the StatefulSet runs."""
        return range(self.first_broker, self.first_broker + self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedClaim:
    """The claim for the disk of a broker or of an etcd member."""

    name: str
    uid: str
    pool: str
    broker: int
    requested: str
    capacity: str
    waits_for_restart_since: str = ""
    """Time at which the volume was enlarged, if its file system grows only at the next start of the pod; empty
    otherwise."""
    terminating: bool = False
    announced_address: str = ""
    """External address for which the broker was last restarted or that it read at startup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersAnswer:
    """The brokers' answers about their cluster."""

    cluster_id: str
    controller: int | None
    release: str
    feature_level: int
    brokers: Mapping[int, BrokerDescription]
    config: Mapping[str, ConfigEntry]
    certificates: tuple[CertificateDescription, ...] = ()
    """Certificates that the brokers have loaded; the certificates are read only if the Cluster has security."""
    metadata: Metadata | None = None
    """Topics and their replicas; topics are read only if the plan depends on topics."""

    def registered(self, broker: int) -> bool:
        """Return whether the broker is registered in its cluster."""
        found = self.brokers.get(broker)
        return found is not None and found.state != "gone"

    @property
    def without_external(self) -> frozenset[int]:
        """The registered brokers without a listener for external clients: those of older releases or templates."""
        return frozenset(
            broker
            for broker, each in self.brokers.items()
            if self.registered(broker) and each.external_address is None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observed state of a Cluster at one point in time."""

    now: datetime
    pods: tuple[ObservedPod, ...] = ()
    """Pods of brokers."""
    sets: tuple[ObservedSet, ...] = ()
    """StatefulSets of pools."""
    etcd_set: ObservedSet | None = None
    etcd_image: str = ""
    """Image of the newest etcd pod; empty if there are no etcd pods."""
    claims: tuple[ObservedClaim, ...] = ()
    """Claims of brokers and of etcd."""
    services: tuple[Manifest, ...] = ()
    """Live Services as unparsed manifests, since several fields of a Service contain external addresses of brokers."""
    console_fault: str = ""
    """Reason why the console has had no ready pod for `CONSOLE_PATIENCE`; empty otherwise, and without a console."""
    brokers: BrokersAnswer | None = None
    """Answers of the brokers; None while no broker answers."""
    silence: str = ""
    """Reason why no broker answers; empty while a broker answers."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Brokers whose pod the API server refuses, each with the message from the API server."""

    @property
    def nodes(self) -> dict[int, str]:
        """The address of each broker's node, without brokers whose pod has no node yet."""
        return {pod.broker: pod.node_address for pod in self.pods if pod.node_address}

    @property
    def has_external(self) -> bool:
        """Whether every broker has a listener for external clients; True while no broker answers."""
        return self.brokers is None or not self.brokers.without_external

    @property
    def lacks_pods(self) -> bool:
        """Whether a StatefulSet has fewer pods than replicas."""
        return len(self.pods) < sum(each.replicas for each in self.sets if not each.terminating)

    def set_of(self, pool: str) -> ObservedSet | None:
        """Return the StatefulSet of a pool; None if the pool has no StatefulSet."""
        return next((each for each in self.sets if each.pool == pool), None)


def observe_console(deployment: Object, now: datetime) -> str:
    """Return the reason why the Deployment of the console has had no ready pod for `CONSOLE_PATIENCE`, or nothing."""
    for each in (deployment.get("status") or {}).get("conditions") or []:
        if each["type"] == "Available" and each["status"] != "True":
            since = datetime.fromisoformat(each["lastTransitionTime"])
            if now - since >= CONSOLE_PATIENCE:
                return f"the console has no ready pod since {each['lastTransitionTime']}"
    return ""


def observe_pod(pod: Object) -> ObservedPod | None:
    """Return the pod of a broker; None if the pod is not a broker's, for example a copy with the same labels."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index = labels.get(POD_INDEX_LABEL) or metadata["name"].rpartition("-")[2]
    if POOL_LABEL not in labels or not _is_numbered(metadata["name"], labels[POOL_LABEL], index):
        return None
    return ObservedPod(
        name=metadata["name"],
        uid=metadata["uid"],
        pool=labels[POOL_LABEL],
        broker=int(index),
        created=metadata.get("creationTimestamp", ""),
        ready=_condition_status(status, "Ready") == "True",
        terminating="deletionTimestamp" in metadata,
        pod_spec_hash=annotations.get(POD_SPEC_HASH_ANNOTATION, ""),
        config_hash=annotations.get(RESTART_CONFIG_HASH_ANNOTATION, ""),
        restart_asked=annotations.get(RESTART_ANNOTATION),
        new_disk_asked=annotations.get(DELETE_POD_AND_CLAIM_ANNOTATION) == "true",
        stuck=_why_stuck(status),
        image=_image(pod.get("spec") or {}),
        security_floor=annotations.get(SECURITY_FLOOR_ANNOTATION, "open"),
        peer_scheme=annotations.get(PEER_SCHEME_ANNOTATION, ""),
        node_address=status.get("hostIP") or "",
    )


def observe_set(stateful_set: Object) -> ObservedSet:
    """Return the facts about a StatefulSet; the pool is empty for the StatefulSet of etcd."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    template = (spec.get("template") or {}).get("metadata") or {}
    annotations = template.get("annotations") or {}
    status = stateful_set.get("status") or {}
    size, storage_class = claim_template_storage(stateful_set)
    return ObservedSet(
        name=metadata["name"],
        uid=metadata["uid"],
        pool=(metadata.get("labels") or {}).get(POOL_LABEL, ""),
        first_broker=(spec.get("ordinals") or {}).get("start", 0),
        replicas=spec.get("replicas", 1),
        settled=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        terminating="deletionTimestamp" in metadata,
        storage_size=size,
        storage_class=storage_class,
        pod_spec_hash=annotations.get(POD_SPEC_HASH_ANNOTATION, ""),
        config_hash=annotations.get(RESTART_CONFIG_HASH_ANNOTATION, ""),
        image=_image((spec.get("template") or {}).get("spec") or {}),
        peer_scheme=annotations.get(PEER_SCHEME_ANNOTATION, ""),
        security_floor=annotations.get(SECURITY_FLOOR_ANNOTATION, "open"),
        etcd_transport=annotations.get(ETCD_TRANSPORT_ANNOTATION, ""),
    )


def pods_expected(stateful_set: Object) -> dict[int, str]:
    """Return the names of the pods that a StatefulSet should have, keyed by ordinal."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    start = (spec.get("ordinals") or {}).get("start", 0)
    return {
        ordinal: f"{metadata['name']}-{ordinal}" for ordinal in range(start, start + spec.get("replicas", 1))
    }


def observe_refusals(missing: Mapping[int, str], events: Iterable[Object]) -> dict[int, str]:
    """Return the messages that report why missing pods of a StatefulSet were refused, keyed by ordinal.

    `missing` contains the names of the missing pods, and `events` contains the Events on the StatefulSet. The
    controller writes an Event for each attempt to create a pod. A later success cancels an earlier refusal, for example
    if the pod was created and then deleted.
    """
    attempts = sorted(events, key=lambda event: (last_time(event), event.get("reason") == CREATE_FAILED))
    refused = dict[int, str]()
    for ordinal, name in missing.items():
        for event in attempts:
            note = str(event.get("note") or "")
            if f"Pod {name} " not in note:
                continue
            if event.get("reason") == CREATE_FAILED:
                refused[ordinal] = note.partition("failed error: ")[2] or note
            elif f"Create Pod {name} " in note or f"create Pod {name} " in note:
                refused.pop(ordinal, None)
    return {ordinal: words[:MESSAGE_CHARACTERS_MAX] for ordinal, words in refused.items()}


def last_time(event: Object) -> str:
    """Return the time of the last occurrence of an Event in seconds, the precision of Kubernetes' own controllers."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), event["metadata"].get("creationTimestamp", "")))[:19]


def claim_template_storage(stateful_set: Object) -> tuple[str, str | None]:
    """Return the size and the storage class in the claim template of a StatefulSet."""
    for template in stateful_set["spec"].get("volumeClaimTemplates") or []:
        if template["metadata"]["name"] == DATA_VOLUME:
            return _requested(template), template["spec"].get("storageClassName")
    return "", None


def observe_claim(claim: Object) -> ObservedClaim | None:
    """Return the facts about a claim, with an empty pool for etcd; None if the claim has no ordinal, as in a copy."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    pool = (metadata.get("labels") or {}).get(POOL_LABEL, "")
    index = metadata["name"].rpartition("-")[2]
    if not _is_numbered(metadata["name"], pool, index) or (
        pool and not metadata["name"].startswith(f"{DATA_VOLUME}-")
    ):
        return None
    return ObservedClaim(
        name=metadata["name"],
        uid=metadata["uid"],
        pool=pool,
        broker=int(index),
        requested=_requested(claim),
        capacity=(status.get("capacity") or {}).get("storage", ""),
        waits_for_restart_since=_resize_pending_since(status),
        announced_address=(metadata.get("annotations") or {}).get(ANNOUNCED_ADDRESS_ANNOTATION, ""),
        terminating="deletionTimestamp" in metadata,
    )


def _is_numbered(name: str, pool: str, index: str) -> bool:
    """Return whether a name ends with the pool name (if not empty) and the ordinal of a pod."""
    return index.isdigit() and name.endswith(f"-{pool}-{index}" if pool else f"-{index}")


def newest_image(pods: Iterable[Object]) -> str:
    """Return the image of the newest pod; empty if no pod is given."""
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    return "" if newest is None else _image(newest.get("spec") or {})


def _image(pod_spec: Object) -> str:
    containers = pod_spec.get("containers") or []
    named = (each for each in containers if each.get("name") in (BROKER_CONTAINER, ETCD_CONTAINER))
    return str(next((each.get("image", "") for each in named), ""))


def _requested(claim: Object) -> str:
    return str(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage", ""))


def _resize_pending_since(status: Object) -> str:
    for condition in status.get("conditions") or []:
        if condition["type"] == "FileSystemResizePending" and condition["status"] == "True":
            return str(condition.get("lastTransitionTime") or "")
    return ""


def _condition_status(status: Object, type_: str) -> str:
    for condition in status.get("conditions") or []:
        if condition["type"] == type_:
            return str(condition["status"])
    return "Unknown"


def _why_stuck(status: Object) -> str | None:
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK_REASONS:
            return _with_message(
                f"{container.get('name', BROKER_CONTAINER)}: {waiting['reason']}", waiting.get("message")
            )
    if status.get("phase") == "Failed":
        return _with_message(f"failed: {status.get('reason') or 'no reason given'}", status.get("message"))
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _with_message("Unschedulable", condition.get("message"))
    return None


def _with_message(what: str, message: str | None) -> str:
    return f"{what}: {message}"[:MESSAGE_CHARACTERS_MAX] if message else what


def is_paused(manifest: Manifest) -> bool:
    """Return whether the object's annotation pauses its reconciliation."""
    annotations = manifest["metadata"].get("annotations") or {}
    return str(annotations.get(PAUSED_ANNOTATION, "")).lower() == "true"


def images_of(cluster: Cluster, observed: Observed, own: Images) -> Images:
    """Return the images for brokers and etcd members."""
    spec = cluster.spec
    running = next((each.image for each in observed.sets if each.image), "") or _newest(observed.pods)
    if spec.image is not None:
        broker = spec.image
    elif spec.version is not None:
        broker = with_tag(own.broker, spec.version)
    else:
        broker = _that_starts(running, cluster, observed) or own.broker
    asked = spec.etcd.managed.image if spec.etcd.managed is not None else None
    running = observed.etcd_set.image if observed.etcd_set is not None else observed.etcd_image
    return Images(broker=broker, etcd=asked or running or own.etcd)


def _that_starts(image: str, cluster: Cluster, observed: Observed) -> str:
    """Return the given image, or the image of other pods if no pod with the given image starts.

    If no pod has another image, a cluster that has already served clients keeps the given image: the registry may be
    unavailable, and the default image of the operator might be an upgrade. For a cluster that has never served clients,
    the result is empty.
    """
    having = [pod for pod in observed.pods if pod.image == image]
    if not having or any(pod.stuck is None for pod in having):
        return image
    others = _newest(pod for pod in observed.pods if pod.stuck is None)
    return others or (image if cluster.status.cluster_id else "")


def _newest(pods: Iterable[ObservedPod]) -> str:
    """Return the image of the newest pod, which is used while the StatefulSet is being replaced."""
    newest = max(pods, key=lambda pod: pod.created, default=None)
    return "" if newest is None else newest.image


def with_tag(image: str, tag: str) -> str:
    """Return the image with the given tag.

    A port of the registry is not mistaken for a tag, and a digest is dropped.
    """
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}:{tag}"
