"""How what a user writes is laid over what the operator draws: a strategic merge, as `kubectl patch` does it.

Maps are merged key by key, all the way down. Lists whose entries have a name of their own are merged by it: an entry
with the name of one that is there is laid over it, or takes its place where it can be one of several things; others
are added behind. Every other list is replaced whole. A null takes a value away. The user's word wins; what may not be
changed is put back by whoever calls. Knows nothing of brokers or etcd.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "resourceClaims": ("name",),
}
"""Lists that are merged, by the field that holds them, and what tells entries apart: as Kubernetes declares it."""
ONE_OF_A_KIND: Final = frozenset({"env", "volumes"})
"""Lists whose entries are one of several things: laid over each other, two of them would stand in one entry."""
_DEFAULTS: Final[Mapping[str, str]] = {"protocol": "TCP"}


def strategic_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid on it. Neither is changed, and the order of `base` is kept.

    Entries of lists that are merged are maps.
    """
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(key, base.get(key), value)
    return merged


def _merged(field: str, base: object, over: object) -> object:
    if isinstance(over, Mapping):
        return strategic_merge(base if isinstance(base, Mapping) else {}, over)
    if isinstance(over, list) and isinstance(base, list) and field in MERGE_KEYS:
        return _merged_list(field, base, over)
    return over


def _merged_list(field: str, base: list[Any], over: list[Any]) -> list[Any]:
    merged: dict[tuple[object, ...], Any] = {}
    for entry in [*base, *over]:
        name = tuple(entry.get(each, _DEFAULTS.get(each)) for each in MERGE_KEYS[field])
        laid = name in merged and field not in ONE_OF_A_KIND
        merged[name] = strategic_merge(merged[name], entry) if laid else entry
    return list(merged.values())
