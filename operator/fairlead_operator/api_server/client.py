"""Client of the API server, which handles objects as dicts and applies manifests under one field manager.

`ApiClient` implements `ports.KubernetesApi`. While this process is not the leader, the client sends no writes. The API
server's answer to a write is stored in the cache at once, so that the next reconcile sees the new state.

`Requests` sends a request with its deadline and retries, and returns the answer as a dict or raises a typed error.
After a 429 or 5xx answer or a lost connection, the request is retried within the deadline, after the pause in
`Retry-After` or with backoff. A conflict is never retried: the caller must read the object and decide again.

The code is in one file because every call shares the handling of deadline, retries and errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from fairlead_operator.api_server.applying import differs_in, hash_of, marked, same_status, stands
from fairlead_operator.api_server.connection import Connection
from fairlead_operator.clock import Chance
from fairlead_operator.naming import FIELD_MANAGER, Kind, Manifest, ObjectRef
from fairlead_operator.ports import (
    ApiError,
    Conflict,
    EventType,
    Forbidden,
    Invalid,
    NotFound,
    Propagation,
    Unavailable,
)
from fairlead_operator.telemetry import Log, Telemetry

CONNECTIONS_MAX: Final = 16
"""Maximum number of concurrent requests: enough for the workers of the queue and a few other tasks."""
DEADLINE_SECONDS: Final = 10.0
LIST_DEADLINE_SECONDS: Final = 60.0
"""Deadline for one page of a list, since each page may be large."""
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MAX: Final = 3.0
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_NOT_PROCESSED: Final = 429
_UNAUTHORIZED: Final = 401
_NOT_TYPED: Final = "failed to create typed patch object"
"""Message of the API server for a manifest with an unknown field. The API server answers with status 500, although the
request is invalid."""
_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Unavailable,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the API server. `repeatable` marks an idempotent request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeatable: bool = True
    deadline_seconds: float = DEADLINE_SECONDS


class Requests:
    """Connections to one API server. `chance` returns random numbers from 0 to 1."""

    def __init__(
        self, connection: Connection, telemetry: Telemetry, chance: Chance, *, identity: str = ""
    ) -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._log = telemetry.log
        self._chance = chance
        # The user agent distinguishes replicas of one operator in the audit log.
        self._agent = "/".join(filter(None, (FIELD_MANAGER, identity)))
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: Request, *, still_allowed: Callable[[], float] | None = None) -> Manifest:
        """Send a request and return the object in the answer.

        `still_allowed` returns the number of seconds for which the caller may still write; after that time, the client
        sends no request and awaits no answer. Raises a subclass of `ApiError`.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + request.deadline_seconds
        pause = PAUSE_SECONDS
        renewed = False
        while True:
            left = until - clock()
            if still_allowed is not None:
                left = min(left, still_allowed())
            if left <= 0:
                raise Unavailable(
                    0,
                    "Deadline",
                    f"{request.method} {request.path}: the deadline passed before the request could be sent",
                )
            # Each attempt gets half of the deadline, which leaves time for a second attempt if the server accepts the
            # request but never answers.
            try:
                return await self._attempt(request, min(left, request.deadline_seconds / 2))
            except _Refused as refused:
                error = refused.error
                wait = refused.retry_after_seconds or pause * (0.75 + self._chance() / 2)
                if error.status == _UNAUTHORIZED and not renewed:
                    renewed = True
                    await self._renew()
                    continue
                if not refused.try_again or clock() + wait >= until:
                    raise error from refused.__cause__
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
            await asyncio.sleep(wait)  # noqa: TID251 - a pause before the next attempt

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _attempt(self, request: Request, seconds: float) -> Manifest:
        headers = {
            "Accept": request.accept,
            "User-Agent": self._agent,
            **await self._connection.authorization(),
        }
        data = None
        if request.body is not None:
            data = json.dumps(request.body, separators=(",", ":")).encode()
            headers["Content-Type"] = request.content_type
        verb = request.method.lower()
        try:
            async with (
                asyncio.timeout(seconds),
                self._open().request(
                    request.method,
                    self._connection.server + request.path,
                    params=request.query,
                    data=data,
                    headers=headers,
                ) as response,
            ):
                body = await response.read()
                self._telemetry.requests_total.labels(verb, str(response.status)).inc()
                if response.ok:
                    return _object(body)
                raise _refused(request, response.status, body, response.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._telemetry.requests_total.labels(verb, "none").inc()
            what = str(error) or f"no answer within {seconds:.1f} s"
            unavailable = Unavailable(0, "NoAnswer", f"{request.method} {request.path}: {what}")
            raise _Refused(unavailable, try_again=request.repeatable) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._connection.tls, limit=CONNECTIONS_MAX)
            self._session = aiohttp.ClientSession(
                connector=connector, proxy=self._connection.configuration.proxy
            )
        return self._session

    async def _renew(self) -> None:
        """Read the credentials again and close the connections; requests in flight fail as after a lost connection."""
        self._log.info("credentials read again")
        await self._connection.load()
        old, self._session = self._session, None
        if old is not None:
            await old.close()


class _Refused(Exception):
    def __init__(self, error: ApiError, *, try_again: bool, retry_after_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.try_again = try_again
        self.retry_after_seconds = retry_after_seconds


def _object(body: bytes) -> Manifest:
    answer = json.loads(body)
    assert isinstance(answer, dict), "the API server returns JSON objects"
    return answer


def _refused(request: Request, status: int, body: bytes, retry_after: str | None) -> _Refused:
    reason, message = "", body[:500].decode(errors="replace")
    with contextlib.suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict):
            reason, message = str(answer.get("reason", "")), str(answer.get("message", message))
    kind = Invalid if _NOT_TYPED in message else _BY_STATUS.get(status, Unavailable)
    error = kind(status, reason, message or f"{request.method} {request.path}")
    seconds = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    again = status == _NOT_PROCESSED or (kind is Unavailable and status in _TRY_AGAIN and request.repeatable)
    return _Refused(error, try_again=again, retry_after_seconds=seconds)


LIST_PART: Final = 500
"""Maximum number of objects in one page of a list."""
SETTLED_MAX: Final = 20_000
"""Maximum number of objects whose last apply is remembered; a forgotten object costs one unnecessary apply."""
WITHOUT_NAMESPACE: Final = frozenset({"nodes", "storageclasses", "customresourcedefinitions", "namespaces"})
_Manifests = list[Manifest]
_APPLY: Final = "application/apply-patch+yaml"
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class ApiClient:
    """Implementation of `KubernetesApi` on top of `Requests`.

    `may_write` returns the number of seconds for which this process may still write. `seen` receives every object that
    the API server returns for a write. `announce` writes Events.
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

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> list[Manifest]:
        """See `KubernetesApi.list`."""
        return await self._list(kind, namespace, selector, "application/json", fields)

    async def versions(self, kind: Kind, namespace: str | None, selector: str = "") -> _Manifests:
        """Return only the metadata of all objects of a kind, for a periodic comparison with the cache."""
        return await self._list(kind, namespace, selector, _METADATA)

    async def kinds_of(self, api_version: str) -> frozenset[str]:
        """Return the kinds that the API server has in a group and version; empty if the group does not exist."""
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

        Raises `Conflict` if the existing object of that name has a different owner than the manifest.
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

    async def account_token(self, account: ObjectRef, audience: str, seconds: int) -> str:
        """Return a token of a service account for an audience, from the subresource `token`. Raises `ApiError`."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": seconds},
        }
        answer = await self._requests.send(Request("POST", f"{path_of(account)}/token", {}, body))
        return str(answer["status"]["token"])

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create an object. Raises `Conflict` if an object of that name exists."""
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
        """Replace the object. Raises `Conflict` if the `resourceVersion` of the manifest is outdated."""
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

    async def _list(
        self, kind: Kind, namespace: str | None, selector: str, accept: str, fields: str = ""
    ) -> _Manifests:
        found: _Manifests = []
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(LIST_PART), **{name: value for name, value in selectors.items() if value}}
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
            # The API server omits apiVersion and kind in the items of a list.
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
    """Return the URL path for all objects of a kind, in one namespace or in all namespaces."""
    root = f"/apis/{kind.api_version}" if "/" in kind.api_version else f"/api/{kind.api_version}"
    inside = f"/namespaces/{namespace}" if namespace and kind.plural not in WITHOUT_NAMESPACE else ""
    return f"{root}{inside}/{kind.plural}"


def path_of(ref: ObjectRef) -> str:
    """Return the URL path of one object."""
    return f"{collection(ref.kind, ref.namespace)}/{ref.name}"


def trimmed(manifest: Manifest) -> Manifest:
    """Return the object without managedFields, which are large and which the operator does not use."""
    metadata = manifest.get("metadata")
    if metadata is not None:
        metadata.pop("managedFields", None)
    return manifest


def reference_to(manifest: Manifest) -> ObjectRef:
    """Return the reference to the object in a manifest.

    Raises `ValueError` for a kind that the operator does not know.
    """
    named = (manifest["apiVersion"], manifest["kind"])
    kind = _KINDS.get(named)
    if kind is None:
        msg = f"the operator does not know the kind {named}"
        raise ValueError(msg)
    metadata = manifest["metadata"]
    return ObjectRef(kind, metadata.get("namespace", ""), metadata["name"])


def _known_kinds() -> dict[tuple[str, str], Kind]:
    from fairlead_operator import naming  # noqa: PLC0415 - the constants of the module are the table of kinds

    return {
        (value.api_version, value.kind): value for value in vars(naming).values() if isinstance(value, Kind)
    }


_KINDS: Final = _known_kinds()


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("resourceVersion", ""))


def _refuse_foreign(ref: ObjectRef, manifest: Manifest, live: Manifest) -> None:
    """Raise `Conflict` if the live object has another owner than the manifest; an object without one may be adopted.

    A manifest without an owner is never refused: the operator applies one to remove the owner of objects that it keeps.
    """
    ours = {owner["uid"] for owner in manifest["metadata"].get("ownerReferences", [])}
    if not ours:
        return
    for owner in live["metadata"].get("ownerReferences", []):
        if owner.get("controller") and owner["uid"] not in ours:
            message = f"{ref} belongs to {owner['kind']} {owner['name']}: rename one of the two"
            raise Conflict(409, "OwnedByAnother", message)
