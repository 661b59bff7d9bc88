"""kopf, which lists and watches, in a thread and loop of its own.

Only its event handlers are used: nothing of kopf is stored in objects, no finalizer, no annotation, no Event, no
record of peers. It has a thread because it ends every task that it finds in its loop when it stops, and because a
list of thousands of objects must not hold up the renewal of the Lease. Every change is handed over as kopf got it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import kopf

from fairlead_operator.api_server.connection import Connection
from fairlead_operator.naming import GROUP, Kind, Manifest
from fairlead_operator.settings import Scope
from fairlead_operator.telemetry import Log
from fairlead_operator.watching.routing import OWN_SELECTOR, RESOURCES

SERVER_SECONDS: Final = 300
"""After so long the server ends a watch, and kopf begins another one where it was."""
CLIENT_SECONDS: Final = 310
INACTIVE_SECONDS: Final = 75.0
"""A watch without an event, not even a bookmark (one a minute), is opened again."""
CONNECT_SECONDS: Final = 10.0
BEAT_SECONDS: Final = 2.0
LIST_PART: Final = 500

Deliver = Callable[[Kind, str | None, Manifest], None]
"""Told of a change in kopf's thread: kind, `ADDED`, `MODIFIED`, `DELETED` or (listed) None, and the object."""


class EventThread:
    """One run of kopf over a fixed set of kinds; start another one when the kinds change or it ends."""

    def __init__(
        self,
        connection: Connection,
        kinds: Iterable[Kind],
        scope: Scope,
        identity: str,
        log: Log,
        deliver: Deliver,
    ) -> None:
        self._connection = Connection(connection.kubeconfig, connection.context)
        self._kinds = tuple(kinds)
        self._scope = scope
        self._identity = identity
        self._log = log
        self._deliver = deliver
        self._stop = threading.Event()
        self._beat = time.monotonic()  # noqa: TID251 - asked for by another thread's loop
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still runs; it ends by itself when the API server stays away, or takes back a kind."""
        return self._thread.is_alive()

    def silent_seconds(self) -> float:
        """How long its loop has not turned."""
        return time.monotonic() - self._beat  # noqa: TID251 - another thread's sign of life

    async def stop(self, seconds: float) -> None:
        """Ask it to end, and wait for that as long; what then still runs ends with the process."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, seconds)

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception as error:  # noqa: BLE001 - kopf's last error of any kind; the supervisor begins again
            self._log.warning("watching failed", error=repr(error))

    async def _watch(self) -> None:
        # Callbacks of its streams fail on tasks that its own end has cancelled, which says nothing.
        asyncio.get_running_loop().set_exception_handler(self._unheard)
        # kopf ends the tasks that began after it; this one is ended here.
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(self._live())
            await kopf.operator(
                registry=self._registry(),
                settings=_settings(),
                standalone=True,
                # kopf would look up the user's name, which a container's uid often does not have.
                identity=cast("Any", self._identity),
                clusterwide=self._scope.everything,
                namespaces=self._scope.namespaces,
                stop_flag=self._stop,
            )
            beat.cancel()

    def _unheard(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._log.debug("callback of watching failed", what=str(context.get("message")))

    async def _live(self) -> None:
        while True:
            self._beat = time.monotonic()  # noqa: TID251 - a sign of life for another thread
            await asyncio.sleep(BEAT_SECONDS)  # noqa: TID251 - the beat

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="login", retries=3)(self._login)
        for kind in self._kinds:
            group, _, version = kind.api_version.rpartition("/")
            kopf.on.event(group=group, version=version, plural=kind.plural, id=kind.kind, registry=registry)(
                self._handler(kind)
            )
        return registry

    def _handler(self, kind: Kind) -> Callable[..., Any]:
        async def seen(event: kopf.RawEvent, **_: object) -> None:
            manifest: Manifest = {
                **cast("Manifest", event["object"]),
                "apiVersion": kind.api_version,
                "kind": kind.kind,
            }
            self._deliver(kind, event["type"], manifest)

        return seen

    async def _login(self, **_: object) -> kopf.ConnectionInfo:
        # kopf comes back when the server no longer knows the token: read what there is now.
        await self._connection.load()
        configuration = self._connection.configuration
        scheme, _space, token = (
            (await self._connection.authorization()).get("Authorization", "").partition(" ")
        )
        return kopf.ConnectionInfo(
            server=self._connection.server,
            ca_path=configuration.ssl_ca_cert,
            ca_data=configuration.ca_cert_data if configuration.ssl_ca_cert is None else None,
            insecure=not configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            proxy_url=configuration.proxy,
        )


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None
    settings.posting.enabled = False
    # Discovery, which every account may call, lists the existing kinds; see `supervision`.
    settings.scanning.disabled = True
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.client_timeout = CLIENT_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = INACTIVE_SECONDS
    settings.watching.chunk_size = LIST_PART
    settings.watching.label_selectors[_is_child] = OWN_SELECTOR
    settings.networking.request_timeout = 60.0
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = (1, 2, 4, 8, 8, 8)
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 1.0
    # Nothing of this is used by handlers of events; if it ever were, it would carry our name.
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    return settings


def _is_child(resource: kopf.Resource) -> bool:
    return all(
        (resource.group, resource.plural) != (kind.api_version.partition("/")[0], kind.plural)
        for kind in RESOURCES
    )


def quieten() -> None:
    """Drop what kopf tells of each event, and that it cannot catch signals; its warnings remain."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
