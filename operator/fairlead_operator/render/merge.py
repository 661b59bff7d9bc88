"""Strategic merge of a user's template over a rendered object, as in `kubectl patch`.

Maps are merged key by key at every level. Lists of named entries are merged by name: a user's entry is merged over the
rendered entry of the same name, or replaces the rendered entry if entries of the list have alternative forms. New
entries are appended. Lists without named entries are replaced. A null removes a value. The user's value takes
precedence; the caller restores values that must not change. The module does not depend on brokers or etcd.
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
"""Fields with lists that are merged, each with the merge keys of the entries, as declared by Kubernetes."""
ONE_OF_A_KIND: Final = frozenset({"env", "volumes"})
"""Lists whose entries have one of several alternative forms. A user's entry replaces the rendered entry of the same
name, since a merged entry could have two forms at once."""
_DEFAULTS: Final[Mapping[str, str]] = {"protocol": "TCP"}


def strategic_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` merged over it. Both arguments are left unchanged, and the order of `base` is kept.

    The entries of merged lists must be maps.
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
