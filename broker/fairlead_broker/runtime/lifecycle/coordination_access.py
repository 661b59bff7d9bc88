"""Access of a broker to its coordination store (etcd or embedded), with retries while etcd is unavailable.

Used by `cluster_entry`. A broker that starts before etcd, or while etcd has no leader, waits and logs warnings. A
failure that a retry cannot resolve (invalid credentials, a different etcd cluster) aborts the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fairlead_broker.clock import Clock
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationClosed,
    CoordinationError,
    CoordinationRefused,
    CoordinationUnavailable,
    UnknownOutcome,
)
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Log

if TYPE_CHECKING:
    from fairlead_broker.coordination.etcd import EtcdCoordination, EtcdOptions, EtcdUser

RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
"""Pauses in seconds between attempts while etcd is unavailable; the last pause repeats."""

Answer = TypeVar("Answer")


class CoordinationElsewhere(CoordinationError):
    """Raised when the data directory belongs to a cluster in a different store."""


def etcd_options(settings: BrokerSettings) -> EtcdOptions | None:
    """Return the options for connecting to etcd; None for embedded coordination.

    Raises ValueError, which names the invalid setting.
    """
    given = {
        "etcd_ca": settings.etcd_ca,
        "etcd_cert": settings.etcd_cert,
        "etcd_key": settings.etcd_key,
        "etcd_user": settings.etcd_user,
    }
    if not settings.etcd_endpoints:
        if alone := [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]:
            message = f"{', '.join(alone)} without --etcd has no effect; also give etcd's URLs"
            raise ValueError(message)
        return None
    for name in ("etcd_ca", "etcd_cert", "etcd_key"):
        path = given[name]
        if isinstance(path, Path) and not path.is_file():
            message = f"--{name.replace('_', '-')}: there is no file {path}"
            raise ValueError(message)
    # Importing gRPC takes a tenth of the startup time, and a broker with the embedded store never needs it.
    from fairlead_broker.coordination.etcd import EtcdOptions, EtcdTls  # noqa: PLC0415

    tls = None
    if settings.etcd_ca or settings.etcd_cert or settings.etcd_key:
        tls = EtcdTls(settings.etcd_ca, settings.etcd_cert, settings.etcd_key)
    return EtcdOptions(settings.etcd_endpoints, tls, _user(settings))


def _user(settings: BrokerSettings) -> EtcdUser | None:
    if settings.etcd_user is None:
        return None
    if settings.etcd_password is None:
        message = "--etcd-user needs the password of that user in FAIRLEAD_ETCD_PASSWORD"
        raise ValueError(message)
    from fairlead_broker.coordination.etcd import EtcdUser  # noqa: PLC0415 - imported only if etcd is used

    return EtcdUser(settings.etcd_user, settings.etcd_password.get_secret_value())


def store_path(data: Path) -> Path:
    """Return the path of the embedded store of a data directory."""
    return data / ".fairlead" / "coordination.sqlite"


async def open_coordination(settings: BrokerSettings, clock: Clock, log: Log) -> Coordination:
    """Connect to etcd and wait until etcd is available, or open the embedded store.

    Raises `CoordinationRefused` and the errors of the embedded store.
    """
    options = etcd_options(settings)
    if options is None:
        return await EmbeddedCoordination.open(store_path(settings.data), clock)
    from fairlead_broker.coordination.etcd import connect  # noqa: PLC0415 - imported only if etcd is used

    store = await patiently(lambda: connect(options), f"connect to etcd at {settings.etcd}", log)
    # A certificate names a user only in an etcd that has users.
    user = settings.etcd_user or settings.etcd_cert
    if user is not None:
        await _warn_if_wide(store, str(user), log)
    return store


async def _warn_if_wide(store: EtcdCoordination, user: str, log: Log) -> None:
    """Warn if the broker's etcd user can read, and so probably also change, keys of other programs (rule T16).

    `user`: name of the user, or the file with the certificate that names the user.
    """
    try:
        if not await store.has_users():
            return
        await store.list("/", limit=1)
    except CoordinationError:
        return
    log.warning(
        "user of etcd can read the keys of other programs; grant it the prefix of the cluster", user=user
    )


async def patiently(attempt: Callable[[], Awaitable[Answer]], what: str, log: Log) -> Answer:
    """Retry an attempt until it succeeds or fails with an error that a retry cannot resolve.

    The function `attempt` must be safe to call repeatedly.
    """
    count = 0
    while True:
        try:
            return await attempt()
        except (CoordinationRefused, CoordinationClosed):
            raise
        except (CoordinationUnavailable, UnknownOutcome) as error:
            log.warning(
                "coordination is unavailable; trying again", what=what, attempt=count, reason=str(error)
            )
            # The store is unavailable, and no event announces when it is available again.
            await asyncio.sleep(RETRY_SECONDS[min(count, len(RETRY_SECONDS) - 1)])  # noqa: TID251
            count += 1
