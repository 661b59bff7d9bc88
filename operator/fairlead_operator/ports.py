"""Interfaces of the operator: Kubernetes API, object cache, reconcilers and work queue.

`reconcile/` uses the interfaces, `api_server/` and `watching/` implement them, and `wiring` connects them. Kubernetes
objects are plain dicts with camel-case keys (`Manifest`), so that unknown fields are kept unchanged. The module must
not know kopf, aiohttp or a Kubernetes client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from fairlead_operator.naming import Kind, Manifest, ObjectRef

Propagation = Literal["Background", "Foreground", "Orphan"]
"""Treatment of an object's children when it is deleted."""

EventType = Literal["Normal", "Warning"]


class Key(NamedTuple):
    """Key of a resource that is reconciled as a whole: name of the kind (`Cluster`, `Topic`), namespace and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the text `Kind namespace/name`."""
        return f"{self.kind} {self.namespace}/{self.name}"


class ApiError(Exception):
    """The API server refused a request or could not be reached.

    `status` is the HTTP status (0 if there was no answer), `reason` Kubernetes' machine-readable reason, and `message`
    its text. Each subclass stands for one reaction of the caller.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """The object or its kind does not exist (the definition is not installed): 404."""


class Conflict(ApiError):
    """Another writer was faster, the object exists already, or its uid differs: 409. The caller must read again."""


class Invalid(ApiError):
    """The object violates a rule, which the message names: 400, 422. A retry is useless; the status must report it."""


class Forbidden(ApiError):
    """The service account lacks a permission, or admission (such as a quota) refused the request: 401, 403.

    The status of the resource must report it.
    """


class Unavailable(ApiError):
    """No answer in time, or an error of the server (429, 5xx) after all retries. The caller must back off."""


class KubernetesApi(Protocol):
    """The API server. Each call has a deadline and is retried within it; returned objects have no managedFields."""

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the object from the server; None if it does not exist."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> list[Manifest]:
        """Return the objects of the kind with the labels of `selector`, in one namespace or (None) in all.

        `fields` is a field selector.
        """
        ...

    async def apply(self, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """Apply `manifest` server-side as `fairlead-operator`, always with a write; return the resulting object.

        With `dry_run`, the server validates the object and stores nothing.
        """
        ...

    async def apply_if_changed(self, manifest: Manifest, live: Manifest | None) -> bool:
        """Apply `manifest` unless `live` (from the cache or `get`) matches it; return whether it was written.

        A repeated manifest is not written. A field of the operator that another writer changed is restored, and fields
        of other writers are not changed. The object is annotated with a hash of the manifest.
        """
        ...

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Apply `status` server-side, always with a write; `manifest` also has apiVersion, kind and name."""
        ...

    async def apply_status_if_changed(self, manifest: Manifest, live: Manifest) -> bool:
        """Apply `status` unless `live` has an equal status; return whether it was written."""
        ...

    async def patch(
        self,
        ref: ObjectRef,
        patch: Manifest | Sequence[Manifest],
        *,
        subresource: str = "",
        resource_version: str | None = None,
    ) -> Manifest:
        """Apply a merge patch (dict) or JSON patch (list). Raises `Conflict` if `resource_version` is outdated."""
        ...

    async def delete(
        self, ref: ObjectRef, *, uid: str | None = None, propagation: Propagation = "Background"
    ) -> bool:
        """Start to delete an object with its own grace period; return False if it does not exist.

        With `uid`, raises `Conflict` if the object has another uid.
        """
        ...

    async def event(self, about: Manifest, type_: EventType, reason: str, message: str) -> None:
        """Write an Event on the object; a repeated message is counted instead of written again.

        Never raises: an Event that cannot be written is logged.
        """
        ...


class ObjectCache(Protocol):
    """Cache of observed objects, fed by watches and by answers to the operator's writes.

    Reads never block and may be slightly stale. The cache contains the resources and all objects with the operator's
    label, without managedFields. Returned objects are shared and must not be changed.
    """

    def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the object; None if it was not observed."""
        ...

    def all(self, kind: Kind, namespace: str | None = None) -> list[Manifest]:
        """Return all objects of the kind, in one namespace or in all watched namespaces."""
        ...

    def owned_by(self, namespace: str, cluster: str, kind: Kind | None = None) -> list[Manifest]:
        """Return the objects with the label of that Cluster, of one kind or of all kinds."""
        ...

    def serves(self, kind: Kind) -> bool:
        """Return whether the API server has that kind now; PodMonitor exists only while its definition is installed."""
        ...


class Reconciler(Protocol):
    """Reconciles one resource with its spec. Idempotent; only one worker at a time calls it for a key.

    Only the leader calls a reconciler. The key of a deleted object is reconciled once more.
    """

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return the seconds until the next pass, or None for no pass before a change.

        An exception means that the pass failed: the failure is logged and counted, and the pass is retried with
        exponential backoff.
        """
        ...


class WorkSink(Protocol):
    """Sink for keys to reconcile, now or after a delay."""

    def add(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Add a key. A key that is added twice before a worker takes it is reconciled once, at the earlier time."""
        ...
