"""What the operator's rooms ask of the world: Kubernetes, what was last seen of it, and work by key.

`reconcile/` is written against these, `api_server/` and `watching/` implement them, `wiring` puts them together.
Objects of Kubernetes are plain dicts in its own camel case (`Manifest`): what is not understood here is kept as it
came. Must not know kopf, aiohttp or a Kubernetes client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from fairlead_operator.naming import Kind, Manifest, ObjectRef

Propagation = Literal["Background", "Foreground", "Orphan"]
"""What becomes of the children of what is deleted."""

EventType = Literal["Normal", "Warning"]


class Key(NamedTuple):
    """One resource that is reconciled as a whole: the kind's name (`Cluster`, `Topic`), its namespace and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Read as `Kind namespace/name`."""
        return f"{self.kind} {self.namespace}/{self.name}"


class ApiError(Exception):
    """The API server refused, or was not reached.

    `status` is that of HTTP (0 when no answer came), `reason` Kubernetes' word for it, `message` its sentence.
    The subclasses are ordered by what the caller does next.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """There is no such object, or no such kind (its definition is not installed): 404."""


class Conflict(ApiError):
    """Another writer was faster, the object exists already, or its uid differs: read and decide again. 409."""


class Invalid(ApiError):
    """The object breaks a rule; the message says which: tell the user, trying again is useless. 400, 422."""


class Forbidden(ApiError):
    """The service account lacks a right, or admission refused (such as a quota): tell the user. 401, 403."""


class Unavailable(ApiError):
    """No answer in time, or the server has trouble (429, 5xx), also after the client's retries: back off."""


class KubernetesApi(Protocol):
    """The API server. Each call has a deadline and retries for a bounded time; objects come without managedFields."""

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """The object as it stands now, read from the server; None when it does not exist."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> list[Manifest]:
        """All objects of the kind, of one namespace or (None) of all, with the labels that `selector` names.

        `fields` is a field selector.
        """
        ...

    async def apply(self, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """Server-side apply as `fairlead-operator`, always written; the object as it stands afterwards.

        `dry_run`: the server checks all and stores nothing.
        """
        ...

    async def apply_if_changed(self, manifest: Manifest, live: Manifest | None) -> bool:
        """Apply `manifest` unless `live` (from the cache or `get`) matches it; return whether it was written.

        A repeated manifest is not written; a field of the operator that another writer changed is restored; fields of
        others are left alone. Marks the object with a hash of the manifest.
        """
        ...

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Server-side apply of `status` (with apiVersion, kind and the name in metadata), always written."""
        ...

    async def apply_status_if_changed(self, manifest: Manifest, live: Manifest) -> bool:
        """Apply `status` unless `live` has exactly this one; whether it was written."""
        ...

    async def patch(
        self,
        ref: ObjectRef,
        patch: Manifest | Sequence[Manifest],
        *,
        subresource: str = "",
        resource_version: str | None = None,
    ) -> Manifest:
        """A merge patch (a dict) or a JSON patch (a list); Conflict when `resource_version` is given and old."""
        ...

    async def delete(
        self, ref: ObjectRef, *, uid: str | None = None, propagation: Propagation = "Background"
    ) -> bool:
        """Begin to delete, with the object's own grace period; False when it does not exist.

        `uid`: only that very object, else Conflict.
        """
        ...

    async def event(self, about: Manifest, type_: EventType, reason: str, message: str) -> None:
        """Write an Event on the object; a repeated message is counted, not written again.

        Never raises: an Event that cannot be written is logged.
        """
        ...


class ObjectCache(Protocol):
    """What was last seen, by watching and in answers to own writes: never a wait, perhaps a moment old.

    Holds the resources themselves and all objects that carry the operator's label, without managedFields. What it
    returns is shared: read, never changed.
    """

    def get(self, ref: ObjectRef) -> Manifest | None:
        """The object, or None when it was not seen."""
        ...

    def all(self, kind: Kind, namespace: str | None = None) -> list[Manifest]:
        """All objects of the kind, of one namespace or of all that are watched."""
        ...

    def owned_by(self, namespace: str, cluster: str, kind: Kind | None = None) -> list[Manifest]:
        """The objects that carry the label of that Cluster, of one kind or of all kinds."""
        ...

    def serves(self, kind: Kind) -> bool:
        """Whether the API server has that kind now (PodMonitor comes and goes with its definition)."""
        ...


class Reconciler(Protocol):
    """Brings one resource from what is to what should be. Idempotent; called for one key by one worker at a time.

    Only the leader calls it. A key whose object is gone is reconciled too, once.
    """

    async def reconcile(self, key: Key) -> float | None:
        """One pass; the seconds after which it is wanted again, None for not before something changes.

        Raising means that the pass failed: it is logged, counted and tried again with exponential backoff.
        """
        ...


class WorkSink(Protocol):
    """Where keys are asked to be reconciled: soon, or in some seconds."""

    def add(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Wanted once more; asked twice before a worker takes it is asked once (the earlier time counts)."""
        ...
