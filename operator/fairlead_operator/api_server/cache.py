"""Cache of Kubernetes objects, fed by watches, by lists, and by the answers to the operator's writes.

The answer to a write may arrive before the watch reports the write, and the watch may report older states after the
answer. The state with the larger resourceVersion wins, since the API server numbers the changes to objects of one kind
in order. Implements `ports.ObjectCache`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fairlead_operator.naming import CLUSTER_LABEL, Kind, Manifest, ObjectRef

GRAVES_MAX: Final = 4096
"""Maximum number of deleted objects whose last version is remembered, so that a late answer to a write does not restore
a deleted object."""


class WatchedObjects:
    """The cache of observed objects. Only one event loop accesses the cache, so no locks are needed."""

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[ObjectRef, Manifest]] = {}
        self._owned: dict[tuple[str, str], set[ObjectRef]] = {}
        self._graves: dict[str, int] = {}
        self._served: frozenset[Kind] = frozenset()

    def get(self, ref: ObjectRef) -> Manifest | None:
        """See `ObjectCache.get`."""
        return self._objects.get(ref.kind, {}).get(ref)

    def all(self, kind: Kind, namespace: str | None = None) -> list[Manifest]:
        """See `ObjectCache.all`."""
        found = self._objects.get(kind, {})
        return [
            manifest for ref, manifest in found.items() if namespace is None or ref.namespace == namespace
        ]

    def owned_by(self, namespace: str, cluster: str, kind: Kind | None = None) -> list[Manifest]:
        """See `ObjectCache.owned_by`."""
        refs = sorted(self._owned.get((namespace, cluster), ()))
        return [self._objects[ref.kind][ref] for ref in refs if kind is None or ref.kind == kind]

    def serves(self, kind: Kind) -> bool:
        """See `ObjectCache.serves`."""
        return kind in self._served

    def count(self, kind: Kind) -> int:
        """Return the number of cached objects of the kind."""
        return len(self._objects.get(kind, ()))

    def refs(self, kind: Kind) -> frozenset[ObjectRef]:
        """Return the references of the cached objects of the kind."""
        return frozenset(self._objects.get(kind, ()))

    def observe(self, kind: Kind, manifest: Manifest) -> bool:
        """Store an observed object; return whether the object was newer than the cached object."""
        metadata = manifest["metadata"]
        ref = ObjectRef(kind, metadata.get("namespace", ""), metadata["name"])
        version = _version(manifest)
        if version <= self._graves.get(metadata.get("uid", ""), -1):
            return False
        known = self._objects.setdefault(kind, {}).get(ref)
        if known is not None and version <= _version(known):
            return False
        metadata.pop("managedFields", None)
        self._forget_owner(ref, known)
        self._objects[kind][ref] = manifest
        owner = _owner(manifest)
        if owner is not None:
            self._owned.setdefault(owner, set()).add(ref)
        return True

    def remove(self, ref: ObjectRef, *, uid: str | None = None, version: int = 0) -> Manifest | None:
        """Remove a deleted object; return the cached state of the object, or None if the object was not cached.

        If `uid` is given, only the object with that uid is removed: a new object of the same name may already be
        cached.
        """
        known = self._objects.get(ref.kind, {}).get(ref)
        known_uid = known["metadata"].get("uid") if known is not None else None
        self._bury(uid or known_uid, max(version, _version(known) if known is not None else 0))
        if known is None or (uid is not None and known_uid != uid):
            return None
        self._drop(ref, known)
        return known

    def serve(self, kinds: Iterable[Kind]) -> None:
        """Set the kinds that the API server has; drop the cached objects of all other kinds."""
        self._served = frozenset(kinds)
        for kind in list(self._objects):
            if kind not in self._served:
                # Objects of a kind without a definition are not recorded as deleted: if the definition is installed
                # again, they may return.
                for ref, known in list(self._objects[kind].items()):
                    self._drop(ref, known)

    def _bury(self, uid: str | None, version: int) -> None:
        if uid:
            if len(self._graves) >= GRAVES_MAX:
                self._graves.pop(next(iter(self._graves)))
            self._graves[uid] = version

    def _drop(self, ref: ObjectRef, known: Manifest) -> None:
        self._forget_owner(ref, known)
        del self._objects[ref.kind][ref]

    def _forget_owner(self, ref: ObjectRef, known: Manifest | None) -> None:
        owner = _owner(known) if known is not None else None
        if owner is not None and owner in self._owned:
            self._owned[owner].discard(ref)
            if not self._owned[owner]:
                del self._owned[owner]


def _owner(manifest: Manifest) -> tuple[str, str] | None:
    metadata = manifest["metadata"]
    cluster = (metadata.get("labels") or {}).get(CLUSTER_LABEL)
    return (metadata.get("namespace", ""), cluster) if cluster else None


def _version(manifest: Manifest) -> int:
    text = str(manifest["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
