"""Inputs of rendering other than the Cluster itself, made by `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

ClusterState: TypeAlias = Literal["new", "existing"]

NOBODY_JOINS: Final = "nobody=http://127.0.0.1:2380"
"""Initial cluster of etcd members while no member joins. A member with data ignores it. A member with an empty volume
does not find its own name in it and refuses to start, so that it cannot return under its old id without its data; the
plan replaces that member by a new one."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images to run, decided by the plan from the resource, the settings and the running images."""

    broker: str
    etcd: str


@dataclass(frozen=True, slots=True)
class EtcdInputs:
    """Inputs for a managed etcd in the current step of its plan."""

    replicas: int
    """Number of pods in this step."""
    initial_cluster: str = NOBODY_JOINS
    """Initial cluster for a member with an empty volume: all members as `name=url,...`, or `NOBODY_JOINS`."""
    state: ClusterState = "existing"
    """Initial cluster state: `new` until every initial member has been seen running, then `existing`."""
    volume_bytes: int | None = None
    """Size in bytes that every existing volume has at least; None before the first volume exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderInputs:
    """Decisions of the plan, and the observed facts that objects depend on."""

    images: Images
    etcd: EtcdInputs | None = None
    """Inputs for a managed etcd; None for an external etcd."""
    pool_replicas: Mapping[str, int] = field(default_factory=dict)
    """Number of pods of each pool in this step; the default is the number in the spec."""
    advertised: Mapping[int, str] = field(default_factory=dict)
    """`host:port` of each broker that clients reach by an address of its own; see `addresses`."""
    kinds: frozenset[str] = frozenset()
    """Names of optional kinds that the API server has: `PodMonitor`."""
    operator_namespace: str = ""
    """Namespace of the operator's own pod, for the network policies; empty outside of the cluster."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """Size in the claim templates by name of a StatefulSet, if it differs from the spec's."""
