"""What the objects of a Cluster follow from beside the Cluster itself. Values only; `plan` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

ClusterState: TypeAlias = Literal["new", "existing"]

NOBODY_JOINS: Final = "nobody=http://127.0.0.1:2380"
"""Initial cluster of etcd's members while none joins. A member with data does not read it. A member with an empty
volume does not find its own name in it and refuses to start, so it cannot return under its old id without its data; the
plan then replaces it by a new member."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images as they are to run, decided by the plan from the resource, the settings and what runs now."""

    broker: str
    etcd: str


@dataclass(frozen=True, slots=True)
class EtcdInputs:
    """The managed etcd at this step of its way."""

    replicas: int
    """Pods that there are to be now."""
    initial_cluster: str = NOBODY_JOINS
    """Initial cluster for a member with an empty volume: all members as `name=url,...`, or `NOBODY_JOINS`."""
    state: ClusterState = "existing"
    """`new` until every first member has been seen running."""
    volume_bytes: int | None = None
    """What every volume has that there is; None before there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderInputs:
    """What the plan decided, and what it saw and the objects depend on."""

    images: Images
    etcd: EtcdInputs | None = None
    """None where etcd is external."""
    pool_replicas: Mapping[str, int] = field(default_factory=dict)
    """Pods that each pool is to have now; a pool without an entry has those of its spec."""
    advertised: Mapping[int, str] = field(default_factory=dict)
    """`host:port` of brokers whose clients reach them by an address of their own; see `addresses`."""
    kinds: frozenset[str] = frozenset()
    """Names of optional kinds that the API server has: `PodMonitor`."""
    operator_namespace: str = ""
    """Namespace of the operator's own pod, for the network policies; empty outside of the cluster."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """By name of a StatefulSet, the size in its claim templates while the live one cannot be changed yet."""
