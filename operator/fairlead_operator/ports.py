"""Interfaces of the operator: Kubernetes API, object cache, reconcilers and work queue.

`reconcile/` uses the interfaces, `api_server/` and `watching/` implement them, and `wiring` connects them. Kubernetes
objects are plain dicts with camel-case keys (`Manifest`), so that unknown fields are kept unchanged. The module must
not depend on kopf, aiohttp or a Kubernetes client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from fairlead_operator.naming import Kind, Manifest, ObjectRef

Propagation = Literal["Background", "Foreground", "Orphan"]
"""Handling of the dependents of a deleted object."""

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

    `status` is the HTTP status (0 without an answer), `reason` is the machine-readable reason of Kubernetes, and
    `message` is the text of the error. Each subclass requires a different reaction from the caller.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """The object does not exist, or its kind does not exist because the definition is not installed: 404."""


class Conflict(ApiError):
    """Another writer changed the object first, the object already exists, or its uid differs: 409.

    The caller must read the object again.
    """


class Invalid(ApiError):
    """The object violates a rule, which the message names: 400, 422.

    A retry is useless; the status of the resource must report the error.
    """


class Forbidden(ApiError):
    """The service account lacks a permission, or admission (such as a quota) refused the request: 401, 403.

    The status of the resource must report the error.
    """


class Unavailable(ApiError):
    """The API server did not answer in time, or failed (429, 5xx) in all retries. The caller must back off."""


class KubernetesApi(Protocol):
    """The API server.

    Each call has a deadline, within which failed requests are retried; returned objects have no managedFields.
    """

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the current object from the API server; None if the object does not exist."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> list[Manifest]:
        """Return the objects of the kind that match the label selector, in one namespace or (None) in all namespaces.

        `fields` is a field selector.
        """
        ...

    async def apply(self, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """Apply `manifest` server-side as `fairlead-operator`, even if nothing changes; return the resulting object.

        With `dry_run`, the API server validates the object and stores nothing.
        """
        ...

    async def apply_if_changed(self, manifest: Manifest, live: Manifest | None) -> bool:
        """Apply `manifest` unless `live` (from the cache or `get`) matches it; return whether a write was sent.

        An unchanged manifest is not applied again. If another writer changed a field of the operator, the field is
        restored; fields of other writers are not changed. The object is annotated with a hash of the manifest.
        """
        ...

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Apply the status in `manifest` server-side, even if nothing changes.

        `manifest` must also contain apiVersion, kind and name.
        """
        ...

    async def apply_status_if_changed(self, manifest: Manifest, live: Manifest) -> bool:
        """Apply the status in `manifest` unless `live` has an equal status; return whether a write was sent."""
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
        """Start the deletion of an object with its own grace period; return False if the object does not exist.

        If `uid` is given, raises `Conflict` if the object has a different uid.
        """
        ...

    async def event(self, about: Manifest, type_: EventType, reason: str, message: str) -> None:
        """Write an Event on the object; a repeated message only increases the count of the existing Event.

        Never raises: an Event that cannot be written is logged.
        """
        ...


class ObjectCache(Protocol):
    """Cache of observed objects, fed by watches and by answers to the operator's writes.

    Reads never block and may return slightly outdated objects. The cache contains the Cluster and Topic resources and
    all objects with the operator's label, without managedFields. Returned objects are shared and must not be changed.
    """

    def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the object; None if the cache does not contain the object."""
        ...

    def all(self, kind: Kind, namespace: str | None = None) -> list[Manifest]:
        """Return all objects of the kind, in one namespace or in all watched namespaces."""
        ...

    def owned_by(self, namespace: str, cluster: str, kind: Kind | None = None) -> list[Manifest]:
        """Return the objects that have the given Cluster's label, for one kind or for all kinds."""
        ...

    def serves(self, kind: Kind) -> bool:
        """Return whether the API server has the kind now; PodMonitor exists only while its definition is installed."""
        ...


class Reconciler(Protocol):
    """Idempotent reconciler of one kind of resource. Only one worker at a time reconciles a key.

    Only the leader calls a reconciler. After an object is deleted, its key is reconciled once more.
    """

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return the seconds until the next pass, or None if the next pass waits for a change.

        An exception means that the pass failed: the failure is logged and counted, and the pass is retried with
        exponential backoff.
        """
        ...


class WorkSink(Protocol):
    """Receiver of keys to reconcile now or after a delay."""

    def add(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Add a key.

        A key that is added twice before a worker takes the key is reconciled once, at the earlier time.
        """
        ...
