"""Watches of Kubernetes objects by kopf, in a separate thread with its own event loop.

The operator uses only kopf's event handlers, which store no finalizer, annotation, Event or peering record in the API
server. kopf has its own thread because kopf cancels every task of its event loop when it stops, and because a list of
thousands of objects must not delay the renewal of the Lease. Every change is passed on exactly as kopf received it.
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
"""Time after which the API server closes a watch; kopf then opens a new watch."""
CLIENT_SECONDS: Final = 310
INACTIVE_SECONDS: Final = 75.0
"""Time without an event or a bookmark after which a watch is reopened; the API server sends a bookmark every minute."""
CONNECT_SECONDS: Final = 10.0
BEAT_SECONDS: Final = 2.0
LIST_PART: Final = 500

Deliver = Callable[[Kind, str | None, Manifest], None]
"""Callback for a change, called in kopf's thread with the kind, the type of the change (`ADDED`, `MODIFIED`, `DELETED`,
or None for a listed object), and the object."""


class EventThread:
    """One run of kopf for a fixed set of kinds; a change of the kinds requires a new run."""

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
        self._beat = time.monotonic()  # noqa: TID251 - another thread's loop reads it
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs.

        The thread ends if the API server stays unreachable or removes a watched kind.
        """
        return self._thread.is_alive()

    def silent_seconds(self) -> float:
        """Return the seconds since the last heartbeat of the event loop in the thread."""
        return time.monotonic() - self._beat  # noqa: TID251 - the time since another thread's heartbeat

    async def stop(self, seconds: float) -> None:
        """Signal the thread to stop, and wait for at most `seconds`; a running thread ends with the process."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, seconds)

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception as error:  # noqa: BLE001 - kopf may raise anything; the supervisor starts a new run
            self._log.warning("watching failed", error=repr(error))

    async def _watch(self) -> None:
        # When kopf stops, callbacks of its streams fail for tasks that kopf has cancelled, which is harmless.
        asyncio.get_running_loop().set_exception_handler(self._unheard)
        # kopf cancels only tasks that were started after kopf itself, so the heartbeat must be cancelled separately.
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(self._live())
            await kopf.operator(
                registry=self._registry(),
                settings=_settings(),
                standalone=True,
                # Without an identity, kopf would look up a user name, which often does not exist for the uid of a
                # container.
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
            self._beat = time.monotonic()  # noqa: TID251 - a heartbeat for another thread
            await asyncio.sleep(BEAT_SECONDS)  # noqa: TID251 - the interval between heartbeats

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
        # kopf logs in again when the API server no longer accepts the token, so each login reads the credentials again.
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
    # kopf need not scan for kinds: `supervision` discovers the existing kinds with calls that every account may make.
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
    # Event handlers store no data, so kopf does not use the names of the finalizer and the annotations. The names only
    # ensure that data stored by kopf would be recognizable.
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
    """Suppress kopf's log line for each event and its message about signals; other warnings remain."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
