"""Supervision of the cache: discovers kinds, lists objects, and runs watches.

At startup, all objects are listed once, so that the first pass sees the whole state. After the first list, kopf reports
changes. Since definitions may be installed later, discovery is repeated every few seconds, and watching restarts when
the existing kinds change. Periodically, the versions of all objects are listed and compared with the cache: watching
restarts if an event was lost, and an object whose deletion was not reported is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol

from fairlead_operator.api_server.cache import WatchedObjects
from fairlead_operator.api_server.connection import Connection
from fairlead_operator.clock import Clock
from fairlead_operator.naming import CLUSTER, STATEFUL_SET, Kind, Manifest, ObjectRef
from fairlead_operator.ports import ApiError, Forbidden, NotFound, WorkSink
from fairlead_operator.settings import Scope
from fairlead_operator.telemetry import Log
from fairlead_operator.watching.events import EventThread
from fairlead_operator.watching.routing import (
    CHILDREN,
    DEPENDENTS,
    OPTIONAL_GROUPS,
    RESOURCES,
    concerns,
    keys_of_change,
    selector_of,
)

DISCOVER_SECONDS: Final = 5.0
PRUNE_SECONDS: Final = (5.0, 20.0, 60.0)
"""Times after the start of watching at which deleted objects are dropped from the cache, since no event reports a
deletion between the operator's list and kopf's first list."""
COMPARE_SECONDS: Final = 120.0
GRACE_SECONDS: Final = 10.0
"""Time within which the watch must report a version that was listed."""
RESTART_SECONDS: Final = 3.0
STOP_SECONDS: Final = 4.0
SILENT_SECONDS_MAX: Final = 60.0
"""Time without a heartbeat after which the watch thread counts as stuck."""
MISSES_MAX: Final = 3
"""Consecutive comparisons with missed changes after which the process counts as unhealthy."""
_Manifests = list[Manifest]


class Lists(Protocol):
    """API calls that the supervision makes."""

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the object; None if the object does not exist."""
        ...

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> _Manifests:
        """Return all objects of the kind."""
        ...

    async def versions(self, kind: Kind, namespace: str | None, selector: str = "") -> _Manifests:
        """Return the metadata of all objects of the kind."""
        ...

    async def kinds_of(self, api_version: str) -> frozenset[str]:
        """Return the kinds of a group and version."""
        ...


class Watching:
    """Keeps the cache up to date while `run` is active."""

    def __init__(
        self,
        api: Lists,
        connection: Connection,
        cache: WatchedObjects,
        scope: Scope,
        *,
        identity: str,
        clock: Clock,
        log: Log,
    ) -> None:
        self._api = api
        self._connection = connection
        self._cache = cache
        self._asked_scope = scope
        self._scope = scope
        self._identity = identity
        self._clock = clock
        self._log = log
        self._sink: WorkSink | None = None
        self._thread: EventThread | None = None
        self._misses = 0
        self.filled = asyncio.Event()
        """Event that is set when all objects have been listed once."""

    def set_sink(self, sink: WorkSink) -> None:
        """Set the sink to which the keys of changed objects are added."""
        self._sink = sink

    def written(self, kind: Kind, manifest: Manifest) -> None:
        """Store the answer to a write of this operator, so that the watch event for the write is ignored.

        Only the objects that name a written Cluster are queued, since the pass that made the write knows the new state.
        """
        before = self._cache.get(_ref(kind, manifest))
        if not concerns(kind, manifest) or not self._cache.observe(kind, manifest) or self._sink is None:
            return
        for key in keys_of_change(kind, before, manifest, self._dependents()):
            if kind == CLUSTER and key.kind != CLUSTER.kind:
                self._sink.add(key)

    def silent_seconds(self) -> float:
        """Return the seconds since the last heartbeat of the watch thread."""
        return self._thread.silent_seconds() if self._thread is not None else 0.0

    def unhealthy(self) -> str:
        """Return the reason why this process must be restarted; empty while the process is healthy.

        An unreachable API server does not make the process unhealthy.
        """
        if self.silent_seconds() > SILENT_SECONDS_MAX:
            return f"the watch thread has sent no heartbeat for {self.silent_seconds():.0f} s"
        if self._misses >= MISSES_MAX:
            return "watching missed changes even after a restart"
        return ""

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                try:
                    kinds = await self._discover()
                    await self._fill(kinds)
                    await self._watch(kinds)
                except ApiError as error:
                    self._log.warning("API server could not be reached", error=str(error))
                    await _pause(RESTART_SECONDS)
                except Exception:  # noqa: BLE001 - an unexpected answer must not stop the operator
                    self._log.exception("watching failed")
                    await _pause(RESTART_SECONDS)
        finally:
            await self._stop()

    async def _watch(self, kinds: frozenset[Kind]) -> None:
        """Watch the given kinds until the existing kinds change or watching must restart."""
        loop = asyncio.get_running_loop()

        def deliver(kind: Kind, type_: str | None, manifest: Manifest) -> None:
            loop.call_soon_threadsafe(self._seen, kind, type_, manifest)

        self._thread = EventThread(self._connection, kinds, self._scope, self._identity, self._log, deliver)
        self._thread.start()
        began = self._clock.monotonic()
        prunes = list(PRUNE_SECONDS)
        compare_at = began + COMPARE_SECONDS
        try:
            while True:
                await _pause(DISCOVER_SECONDS)
                if not self._thread.alive:
                    self._log.warning("watching ended", again_in_seconds=RESTART_SECONDS)
                    await _pause(RESTART_SECONDS)
                    return
                try:
                    if await self._changed(kinds):
                        return
                    if prunes and self._clock.monotonic() >= began + prunes[0]:
                        del prunes[0]
                        await self._prune(kinds)
                    if self._clock.monotonic() >= compare_at:
                        compare_at = self._clock.monotonic() + COMPARE_SECONDS
                        if await self._readable() != self._scope or await self._compare(kinds):
                            return
                except ApiError as error:
                    self._log.warning("API server could not be reached", error=str(error))
        finally:
            await self._stop()

    async def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.stop(STOP_SECONDS)

    async def _discover(self) -> frozenset[Kind]:
        served: set[tuple[str, str]] = set()
        for group in OPTIONAL_GROUPS:
            served |= {(group, kind) for kind in await self._api.kinds_of(group)}
        return frozenset(
            kind
            for kind in (*RESOURCES, *CHILDREN)
            if kind.api_version not in OPTIONAL_GROUPS or (kind.api_version, kind.kind) in served
        )

    async def _changed(self, kinds: frozenset[Kind]) -> bool:
        """Return whether the kinds of the API server have changed; the absence of a kind is checked twice."""
        now = await self._discover()
        if now == kinds:
            return False
        if kinds - now:
            await _pause(DISCOVER_SECONDS)
            now = await self._discover()
        return now != kinds

    async def _fill(self, kinds: frozenset[Kind]) -> None:
        """List all objects once. Raises `ApiError`."""
        missing = [kind.kind for kind in RESOURCES if kind not in kinds]
        if missing:
            self._log.warning(
                "definitions missing", kinds=missing, todo="install the definitions of Fairlead's resources"
            )
        self._cache.serve(kinds)
        await self._narrow()
        # Clusters are listed before the objects that name them, since a pass over such an object reads its Cluster.
        for kind in (*CHILDREN, *RESOURCES):
            if kind in kinds:
                for namespace in self._namespaces():
                    known = {ref for ref in self._cache.refs(kind) if namespace in {None, ref.namespace}}
                    await self._list(kind, namespace, known)
        if not self.filled.is_set():
            self._log.info(
                "watching has started",
                kinds=sorted(kind.kind for kind in kinds),
                namespaces=self._scope.namespaces or "*",
            )
        self.filled.set()

    async def _readable(self) -> Scope:
        """Return the scope without listed namespaces that are unreadable because they are deleted or do not exist yet.

        When a namespace is deleted, the operator's role in this namespace is deleted as well, which must not affect the
        other namespaces. Raises `Forbidden` if no namespace is readable.
        """
        if len(self._asked_scope.namespaces) <= 1:
            return self._asked_scope
        readable, refused = list[str](), list[Forbidden]()
        for namespace in self._asked_scope.namespaces:
            try:
                await self._api.versions(STATEFUL_SET, namespace, selector_of(STATEFUL_SET))
            except Forbidden as error:
                refused.append(error)
            else:
                readable.append(namespace)
        if not readable:
            raise refused[0]
        return Scope(tuple(readable))

    async def _narrow(self) -> None:
        """Exclude unreadable namespaces from the scope, and drop their objects from the cache. Raises `ApiError`."""
        self._scope = await self._readable()
        left_out = set(self._asked_scope.namespaces) - set(self._scope.namespaces)
        if left_out:
            self._log.warning(
                "namespaces left out",
                namespaces=sorted(left_out),
                todo="create the namespace and the operator's role in it, or remove it from the list",
            )
        for kind in (*CHILDREN, *RESOURCES):
            for ref in self._cache.refs(kind):
                if ref.namespace in left_out:
                    self._gone(ref, None, 0)

    async def _list(self, kind: Kind, namespace: str | None, known: set[ObjectRef]) -> None:
        try:
            listed = await self._api.list(kind, namespace, selector_of(kind))
        except NotFound:
            # The definition has just been removed; the next discovery reports the removal.
            return
        for manifest in listed:
            known.discard(_ref(kind, manifest))
            self._seen(kind, None, manifest)
        for ref in known:
            self._gone(ref, None, 0)

    async def _prune(self, kinds: frozenset[Kind]) -> dict[ObjectRef, int]:
        """Drop objects that the API server no longer has; return the versions of all other objects.

        Raises `ApiError`.
        """
        listed: dict[ObjectRef, int] = {}
        for kind in kinds:
            for namespace in self._namespaces():
                known = {ref for ref in self._cache.refs(kind) if namespace in {None, ref.namespace}}
                for manifest in await self._api.versions(kind, namespace, selector_of(kind)):
                    ref = _ref(kind, manifest)
                    known.discard(ref)
                    listed[ref] = int(manifest["metadata"]["resourceVersion"])
                for ref in known:
                    # The deletion was not reported, since no watch was open when the object was deleted.
                    self._gone(ref, None, 0)
        return listed

    async def _compare(self, kinds: frozenset[Kind]) -> bool:
        """Compare the cache with the API server's objects; return whether watching must restart. Raises `ApiError`."""
        listed = await self._prune(kinds)
        await _pause(GRACE_SECONDS)
        missed = 0
        for ref, version in listed.items():
            if self._version(ref) < version:
                now = await self._api.get(ref)
                if now is not None and self._version(ref) < version:
                    missed += 1
                    self._seen(ref.kind, None, now)
        self._misses = self._misses + 1 if missed else 0
        if missed:
            self._log.warning("watching missed changes", objects=missed)
        return missed > 0

    def _version(self, ref: ObjectRef) -> int:
        manifest = self._cache.get(ref)
        return int(manifest["metadata"]["resourceVersion"]) if manifest is not None else 0

    def _seen(self, kind: Kind, type_: str | None, manifest: Manifest) -> None:
        ref = _ref(kind, manifest)
        if type_ == "DELETED":
            metadata = manifest["metadata"]
            self._gone(ref, metadata.get("uid"), int(metadata.get("resourceVersion") or 0))
            return
        before = self._cache.get(ref)
        if self._cache.observe(kind, manifest):
            self._route(kind, before, manifest)

    def _gone(self, ref: ObjectRef, uid: str | None, version: int) -> None:
        before = self._cache.remove(ref, uid=uid, version=version)
        if before is not None:
            self._route(ref.kind, before, None)

    def _route(self, kind: Kind, before: Manifest | None, after: Manifest | None) -> None:
        if self._sink is not None:
            for key in keys_of_change(kind, before, after, self._dependents()):
                self._sink.add(key)

    def _dependents(self) -> list[Manifest]:
        return [manifest for kind in DEPENDENTS for manifest in self._cache.all(kind)]

    def _namespaces(self) -> Iterator[str | None]:
        yield from self._scope.namespaces or (None,)


def _ref(kind: Kind, manifest: Manifest) -> ObjectRef:
    return ObjectRef(kind, manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)  # noqa: TID251 - no event reports the awaited changes, so they are polled
