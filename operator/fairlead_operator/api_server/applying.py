"""Comparison of a manifest with the live object before an apply, without I/O.

An apply is skipped if the manifest has not changed since the last apply and the live object still has every value of
the manifest. An annotation on the object stores the hash of the last applied manifest; the hash also detects a field
that was removed from the manifest. The comparison with the live object ignores defaults that the API server adds, the
format of quantities, empty values that the server drops, and fields and list elements of other writers. Applying an
equal object would change nothing, but the request would still go through admission and fill audit logs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from fairlead_operator.naming import GROUP, Manifest

APPLIED_HASH_ANNOTATION: Final = f"{GROUP}/applied-hash"
"""Annotation on objects that the operator applies: fingerprint of the last applied manifest."""

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers.env": ("name",),
    "containers.ports": ("containerPort", "protocol"),
    "containers.volumeMounts": ("mountPath",),
    "initContainers.env": ("name",),
    "initContainers.ports": ("containerPort", "protocol"),
    "initContainers.volumeMounts": ("mountPath",),
    "metadata.ownerReferences": ("uid",),
    "spec.containers": ("name",),
    "spec.hostAliases": ("ip",),
    "spec.imagePullSecrets": ("name",),
    "spec.initContainers": ("name",),
    "spec.ports": ("port", "protocol"),
    "spec.topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "spec.volumes": ("name",),
}
"""Lists with elements from several writers, written as `parent.name`, each with the keys that identify an element. All
other lists are owned by the operator as a whole."""
_WHOLE: Final = frozenset(
    {"selector", "matchLabels", "nodeSelector", "podSelector", "namespaceSelector", "labelSelector"}
)
"""Maps that the operator owns as a whole, since an additional label in a selector would select different pods."""
_DEFAULT_OF_KEY: Final = {"protocol": "TCP"}
_QUANTITIES: Final = frozenset({"requests", "limits", "sizeLimit", "storage", "overhead", "hard"})
"""Fields whose nested strings are quantities, which the API server normalizes: `1000m` becomes `1`."""
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]))?")
_SCALE: Final[Mapping[str, Decimal]] = {
    **{
        suffix: Decimal(10) ** power
        for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{suffix}i": Decimal(1024) ** (index + 1) for index, suffix in enumerate("KMGTPE")},
}


def hash_of(manifest: Manifest) -> str:
    """Return the fingerprint of a manifest, which does not depend on the order of keys."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def marked(manifest: Manifest) -> Manifest:
    """Return the manifest with its own fingerprint in an annotation."""
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), APPLIED_HASH_ANNOTATION: hash_of(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def stands(manifest: Manifest, live: Manifest) -> bool:
    """Return whether the live object has every value of a manifest that `marked` returned."""
    return _stands(manifest, live, ())


def same_status(wanted: Any, live: Any) -> bool:
    """Return whether two statuses are equal; None and empty values count as absent."""
    return bool(_pruned(wanted or {}) == _pruned(live or {}))


def differs_in(manifest: Manifest, live: Manifest) -> str:
    """Return the path of the first difference in the live object, for logs; empty if the objects do not differ."""
    path: list[str] = []
    return "" if _stands(manifest, live, (), path) else ".".join(reversed(path))


def _stands(wanted: Any, live: Any, path: tuple[str, ...], found: list[str] | None = None) -> bool:
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        if path and path[-1] in _WHOLE and any(live[name] for name in live.keys() - wanted.keys()):
            return False
        for name, value in wanted.items():
            if not _stands(value, live.get(name), (*path, name), found):
                if found is not None:
                    found.append(name)
                return False
        return True
    if isinstance(wanted, list | tuple):
        return _list_stands(wanted, live, path, found)
    if live is None:
        # The server drops empty values.
        return not wanted
    return _same_value(wanted, live, path)


def _list_stands(wanted: Sequence[Any], live: Any, path: tuple[str, ...], found: list[str] | None) -> bool:
    if live is None:
        return not wanted
    if not isinstance(live, list):
        return False
    keys = _KEYS.get(".".join(path[-2:]))
    if keys is None:
        return len(wanted) == len(live) and all(
            _stands(ours, theirs, path, found) for ours, theirs in zip(wanted, live, strict=True)
        )
    by_key = {_key(element, keys): element for element in live}
    return all(_stands(element, by_key.get(_key(element, keys), _ABSENT), path, found) for element in wanted)


_ABSENT: Final = object()


def _key(element: Any, keys: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(element, Mapping):
        return (element,)
    return tuple(element.get(key, _DEFAULT_OF_KEY.get(key)) for key in keys)


def _same_value(wanted: Any, live: Any, path: tuple[str, ...]) -> bool:
    # True equals 1 in Python, but not in a Kubernetes object.
    if isinstance(wanted, bool) is not isinstance(live, bool):
        return False
    if wanted == live:
        return True
    if not _QUANTITIES.isdisjoint(path):
        ours, theirs = _quantity(wanted), _quantity(live)
        return ours is not None and ours == theirs
    return False


def _quantity(value: Any) -> Decimal | None:
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    return Decimal(f"{number}{exponent or ''}") * _SCALE.get(suffix or "", Decimal(1))


def _pruned(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {name: _pruned(inner) for name, inner in value.items()}
        return {name: inner for name, inner in kept.items() if inner not in (None, {}, [], "")}
    if isinstance(value, list | tuple):
        return [_pruned(element) for element in value]
    return value
