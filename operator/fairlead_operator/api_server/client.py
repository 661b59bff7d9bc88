"""The API server as the rest of the operator sees it: objects as dicts, applied under one field manager.

Implements `ports.KubernetesApi`. All writes pass one gate, which is closed while this process is not the leader, and
what the server answers to a write goes into the cache at once, so that the next reconcile does not decide on what
was before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from fairlead_operator.api_server.applying import differs_in, hash_of, marked, same_status, stands
from fairlead_operator.api_server.requests import DEADLINE_SECONDS, LIST_DEADLINE_SECONDS, Request, Requests
from fairlead_operator.naming import FIELD_MANAGER, Kind, Manifest, ObjectRef
from fairlead_operator.ports import Conflict, EventType, NotFound, Propagation
from fairlead_operator.telemetry import Log

LIST_PART: Final = 500
"""Objects in one part of a list."""
SETTLED_MAX: Final = 20_000
"""Objects whose last apply is remembered; forgetting costs one apply that changes nothing."""
WITHOUT_NAMESPACE: Final = frozenset({"nodes", "storageclasses", "customresourcedefinitions", "namespaces"})
_Manifests = list[Manifest]
_APPLY: Final = "application/apply-patch+yaml"
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class ApiClient:
    """`KubernetesApi` over `Requests`.

    `may_write` gives the seconds for which writing is still allowed; `seen` is told every object that a write
    answered with; `announce` writes Events.
    """

    def __init__(
        self,
        requests: Requests,
        log: Log,
        *,
        may_write: Callable[[], float],
        seen: Callable[[Kind, Manifest], object],
        announce: Callable[[Manifest, EventType, str, str], Awaitable[None]] | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._requests = requests
        self._log = log
        self._may_write = may_write
        self._seen = seen
        self._announce = announce
        self._deadline_seconds = deadline_seconds
        self._settled: dict[ObjectRef, tuple[str, str]] = {}

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """See `KubernetesApi.get`."""
        request = Request("GET", path_of(ref), {}, deadline_seconds=self._deadline_seconds)
        try:
            return trimmed(await self._requests.send(request))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Manifest]:
        """See `KubernetesApi.list`."""
        return await self._list(kind, namespace, selector, "application/json")

    async def versions(self, kind: Kind, namespace: str | None, selector: str = "") -> _Manifests:
        """Only the metadata of the objects: cheap enough to compare now and then with what was watched."""
        return await self._list(kind, namespace, selector, _METADATA)

    async def kinds_of(self, api_version: str) -> frozenset[str]:
        """The names of the kinds that the server has in that group and version; empty when it has no such group."""
        prefix = "/apis/" if "/" in api_version else "/api/"
        try:
            answer = await self._requests.send(Request("GET", prefix + api_version, {}))
        except NotFound:
            return frozenset()
        return frozenset(resource["kind"] for resource in answer.get("resources", []))

    async def apply(self, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """See `KubernetesApi.apply`."""
        return await self._apply(manifest, "", force=force, dry_run=dry_run)

    async def apply_if_changed(self, manifest: Manifest, live: Manifest | None) -> bool:
        """See `KubernetesApi.apply_if_changed`.

        Raises Conflict when an object of that name belongs to another owner than the one that the manifest names.
        """
        ref = reference_to(manifest)
        wanted = marked(manifest)
        if live is None:
            live = await self.get(ref)
        if live is not None:
            _refuse_foreign(ref, manifest, live)
            if stands(wanted, live) or self._settled.get(ref) == (hash_of(manifest), _version(live)):
                return False
        after = await self.apply(wanted)
        self._remember(ref, hash_of(manifest), _version(after))
        changed = live is None or _version(after) != _version(live)
        if changed:
            self._log.info(
                "object applied",
                object=str(ref),
                differed_in=differs_in(wanted, live) if live is not None else "new",
            )
        return changed

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """See `KubernetesApi.apply_status`."""
        metadata = manifest["metadata"]
        named = {name: metadata[name] for name in ("name", "namespace", "uid") if name in metadata}
        part = {
            "apiVersion": manifest["apiVersion"],
            "kind": manifest["kind"],
            "metadata": named,
            "status": manifest["status"],
        }
        return await self._apply(part, "/status", force=True, dry_run=False)

    async def apply_status_if_changed(self, manifest: Manifest, live: Manifest) -> bool:
        """See `KubernetesApi.apply_status_if_changed`."""
        if same_status(manifest["status"], live.get("status")):
            return False
        after = await self.apply_status(manifest)
        return _version(after) != _version(live)

    async def patch(
        self,
        ref: ObjectRef,
        patch: Manifest | Sequence[Manifest],
        *,
        subresource: str = "",
        resource_version: str | None = None,
    ) -> Manifest:
        """See `KubernetesApi.patch`."""
        body: Any
        if isinstance(patch, Mapping):
            kind, body = "merge-patch", patch
            if resource_version is not None:
                body = {
                    **patch,
                    "metadata": {**patch.get("metadata", {}), "resourceVersion": resource_version},
                }
        else:
            kind, body = "json-patch", list(patch)
            if resource_version is not None:
                test = {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version}
                body = [test, *body]
        return await self._write(
            ref.kind,
            Request(
                "PATCH",
                path_of(ref) + (f"/{subresource}" if subresource else ""),
                {"fieldManager": FIELD_MANAGER},
                body,
                f"application/{kind}+json",
                repeatable=kind == "merge-patch",
            ),
        )

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Make a new object. Raises Conflict when one of that name exists."""
        path = collection(kind, manifest["metadata"].get("namespace"))
        request = Request(
            "POST",
            path,
            {"fieldManager": FIELD_MANAGER},
            manifest,
            repeatable=False,
            deadline_seconds=self._deadline_seconds,
        )
        return await self._write(kind, request)

    async def replace(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """Write the object over the version that it names. Raises Conflict when that is no longer the last one."""
        request = Request(
            "PUT",
            path_of(ref),
            {"fieldManager": FIELD_MANAGER},
            manifest,
            repeatable=False,
            deadline_seconds=self._deadline_seconds,
        )
        return await self._write(ref.kind, request)

    async def delete(
        self, ref: ObjectRef, *, uid: str | None = None, propagation: Propagation = "Background"
    ) -> bool:
        """See `KubernetesApi.delete`."""
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        request = Request("DELETE", path_of(ref), {}, options, repeatable=uid is not None)
        try:
            await self._requests.send(request, still_allowed=self._may_write)
        except NotFound:
            return False
        self._settled.pop(ref, None)
        self._log.info("object deleted", object=str(ref), uid=uid, propagation=propagation)
        return True

    async def event(self, about: Manifest, type_: EventType, reason: str, message: str) -> None:
        """See `KubernetesApi.event`."""
        if self._announce is not None:
            await self._announce(about, type_, reason, message)

    async def _list(self, kind: Kind, namespace: str | None, selector: str, accept: str) -> _Manifests:
        found: _Manifests = []
        query = {"limit": str(LIST_PART), **({"labelSelector": selector} if selector else {})}
        while True:
            part = await self._requests.send(
                Request(
                    "GET",
                    collection(kind, namespace),
                    query,
                    accept=accept,
                    deadline_seconds=LIST_DEADLINE_SECONDS,
                )
            )
            # Items of a list do not say what they are.
            named = {"apiVersion": kind.api_version, "kind": kind.kind}
            found.extend(trimmed({**item, **named}) for item in part.get("items") or [])
            more = part.get("metadata", {}).get("continue")
            if not more:
                return found
            query["continue"] = more

    async def _apply(self, manifest: Manifest, subresource: str, *, force: bool, dry_run: bool) -> Manifest:
        ref = reference_to(manifest)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        request = Request("PATCH", path_of(ref) + subresource, query, manifest, _APPLY)
        if dry_run:
            return trimmed(await self._requests.send(request))
        return await self._write(ref.kind, request)

    async def _write(self, kind: Kind, request: Request) -> Manifest:
        answer = trimmed(await self._requests.send(request, still_allowed=self._may_write))
        self._seen(kind, answer)
        return answer

    def _remember(self, ref: ObjectRef, hash_: str, version: str) -> None:
        if len(self._settled) >= SETTLED_MAX:
            self._settled.clear()
        self._settled[ref] = (hash_, version)


def collection(kind: Kind, namespace: str | None) -> str:
    """The path of all objects of the kind, in one namespace or in all."""
    root = f"/apis/{kind.api_version}" if "/" in kind.api_version else f"/api/{kind.api_version}"
    inside = f"/namespaces/{namespace}" if namespace and kind.plural not in WITHOUT_NAMESPACE else ""
    return f"{root}{inside}/{kind.plural}"


def path_of(ref: ObjectRef) -> str:
    """The path of one object."""
    return f"{collection(ref.kind, ref.namespace)}/{ref.name}"


def trimmed(manifest: Manifest) -> Manifest:
    """The object without managedFields, which are larger than all else and of no use here."""
    metadata = manifest.get("metadata")
    if metadata is not None:
        metadata.pop("managedFields", None)
    return manifest


def reference_to(manifest: Manifest) -> ObjectRef:
    """The object that a manifest describes. Raises ValueError for a kind that the operator does not know."""
    named = (manifest["apiVersion"], manifest["kind"])
    kind = _KINDS.get(named)
    if kind is None:
        msg = f"the operator does not know the kind {named}"
        raise ValueError(msg)
    metadata = manifest["metadata"]
    return ObjectRef(kind, metadata.get("namespace", ""), metadata["name"])


def _known_kinds() -> dict[tuple[str, str], Kind]:
    from fairlead_operator import naming  # noqa: PLC0415 - read as a table, once

    return {
        (value.api_version, value.kind): value for value in vars(naming).values() if isinstance(value, Kind)
    }


_KINDS: Final = _known_kinds()


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("resourceVersion", ""))


def _refuse_foreign(ref: ObjectRef, manifest: Manifest, live: Manifest) -> None:
    """Objects with another owner are left alone; those without any are adopted.

    A manifest without an owner refuses nobody: it may be there to let the object go from the owner that it had.
    """
    ours = {owner["uid"] for owner in manifest["metadata"].get("ownerReferences", [])}
    if not ours:
        return
    for owner in live["metadata"].get("ownerReferences", []):
        if owner.get("controller") and owner["uid"] not in ours:
            message = f"{ref} belongs to {owner['kind']} {owner['name']}: rename one of the two"
            raise Conflict(409, "OwnedByAnother", message)
