"""An in-memory API server for operator passes: the objects by name, and the operator's cache of these objects."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fairlead_operator.naming import Kind, Manifest, ObjectRef
from fairlead_operator.ports import Conflict, EventType, Forbidden, NotFound, Propagation
from fairlead_operator.watching.routing import RESOURCES


class MemoryApi:
    """An API server in memory: objects by name, resource versions that count up, and recorded events."""

    def __init__(self) -> None:
        """Start without objects."""
        self.objects: dict[ObjectRef, Manifest] = {}
        self.writes: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.forbidden: set[Kind] = set()

    def put(self, kind: Kind, name: str, namespace: str = "shop", **parts: Any) -> ObjectRef:
        """Store an object."""
        ref = ObjectRef(kind, namespace, name)
        metadata: Manifest = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 3}
        metadata |= {"resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        metadata |= parts.pop("metadata", {})
        self.objects[ref] = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}
        return ref

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return an object; see `KubernetesApi`."""
        if ref.kind in self.forbidden:
            raise Forbidden(403, "Forbidden", f"cannot get {ref}")
        return copy.deepcopy(self.objects.get(ref))

    async def patch(
        self,
        ref: ObjectRef,
        patch: Manifest | Sequence[Manifest],
        *,
        subresource: str = "",
        resource_version: str | None = None,
    ) -> Manifest:
        """Patch an object, only its finalizers and the keys of a Secret; see `KubernetesApi`."""
        assert isinstance(patch, dict)
        assert subresource == ""
        live = self.objects.get(ref)
        if live is None:
            raise NotFound(404, "NotFound", str(ref))
        if resource_version not in {None, live["metadata"]["resourceVersion"]}:
            raise Conflict(409, "Conflict", str(ref))
        live["metadata"] |= patch.get("metadata", {})
        if "data" in patch:
            merged = {**live.get("data", {}), **patch["data"]}
            live["data"] = {key: text for key, text in merged.items() if text is not None}
        self._written("patch", live)
        if not live["metadata"].get("finalizers") and "deletionTimestamp" in live["metadata"]:
            del self.objects[ref]
        return live

    async def apply_status_if_changed(self, manifest: Manifest, live: Manifest) -> bool:
        """Apply a status if it differs; see `KubernetesApi`."""
        metadata = manifest["metadata"]
        kind = next(each for each in RESOURCES if each.kind == manifest["kind"])
        stored = self.objects[ObjectRef(kind, metadata["namespace"], metadata["name"])]
        if stored.get("status") == manifest["status"]:
            return False
        stored["status"] = manifest["status"]
        self._written("status", stored)
        return True

    async def event(self, about: Manifest, type_: EventType, reason: str, message: str) -> None:
        """Record an event; see `KubernetesApi`."""
        del about, message
        self.events.append((type_, reason))

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> list[Manifest]:
        """Raise an error, because passes in tests do not call this method."""
        raise NotImplementedError

    async def apply(self, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """Raise an error, because passes in tests do not call this method."""
        raise NotImplementedError

    async def apply_if_changed(self, manifest: Manifest, live: Manifest | None) -> bool:
        """Raise an error, because passes in tests do not call this method."""
        raise NotImplementedError

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Raise an error, because passes in tests do not call this method."""
        raise NotImplementedError

    async def delete(
        self, ref: ObjectRef, *, uid: str | None = None, propagation: Propagation = "Background"
    ) -> bool:
        """Raise an error, because passes in tests do not call this method."""
        raise NotImplementedError

    def _written(self, what: str, live: Manifest) -> None:
        self.writes.append(what)
        live["metadata"]["resourceVersion"] = str(int(live["metadata"]["resourceVersion"]) + 1)


class MemoryCache:
    """A cache that is always current."""

    def __init__(self, api: MemoryApi) -> None:
        """Read the objects of `api`."""
        self._api = api

    def get(self, ref: ObjectRef) -> Manifest | None:
        """Return an object; see `ObjectCache`."""
        return copy.deepcopy(self._api.objects.get(ref))

    def all(self, kind: Kind, namespace: str | None = None) -> list[Manifest]:
        """Return all objects of a kind; see `ObjectCache`."""
        return [
            manifest
            for ref, manifest in self._api.objects.items()
            if ref.kind == kind and namespace in {None, ref.namespace}
        ]

    def owned_by(self, namespace: str, cluster: str, kind: Kind | None = None) -> list[Manifest]:
        """Return no objects, since no object here has an owner; see `ObjectCache`."""
        del namespace, cluster, kind
        return []

    def serves(self, kind: Kind) -> bool:
        """Return whether a kind is served; see `ObjectCache`."""
        return kind in RESOURCES


class StandingClock:
    """Clock that always shows noon."""

    def now(self) -> datetime:
        """Return noon."""
        return datetime(2026, 1, 1, 12, tzinfo=UTC)

    def monotonic(self) -> float:
        """Return a constant."""
        return 0.0
