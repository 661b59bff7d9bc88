"""Which images run: what the Cluster names, else what runs already, else the operator's own.

An operator of a newer release has newer images of its own, and does not restart a broker for that alone: somebody asks
for the new release, by `version` or `image`. An image that starts nowhere does not run: who takes back what named it
gets the one before.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.plan.observed import Observed, ObservedPod
from fairlead_operator.render.inputs import Images


def images_of(cluster: Cluster, observed: Observed, own: Images) -> Images:
    """Return the images that the brokers and members of etcd are to run."""
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
    """Return the image, or where it fails on every pod that has it, the one that others run.

    Where nobody has another, a cluster that has served keeps it: a registry may be away, and the operator's own would
    be an upgrade. A cluster that never did has nothing to lose.
    """
    having = [pod for pod in observed.pods if pod.image == image]
    if not having or any(pod.stuck is None for pod in having):
        return image
    others = _newest(pod for pod in observed.pods if pod.stuck is None)
    return others or (image if cluster.status.cluster_id else "")


def _newest(pods: Iterable[ObservedPod]) -> str:
    """Return what the newest pod runs: a StatefulSet that is made anew for its disks is away for a moment."""
    newest = max(pods, key=lambda pod: pod.created, default=None)
    return "" if newest is None else newest.image


def with_tag(image: str, tag: str) -> str:
    """Return the image of another tag; a registry's port is none, and a digest gives way."""
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}:{tag}"
