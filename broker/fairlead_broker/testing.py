"""Brokers for tests of applications, run in the test's process.

`fairlead.testing` finds this module by its entry point. Only the SDK's testing module calls this module. The brokers
are the same as those of `fairlead dev up`, but without logs and on free ports.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.certificates.files import CA_FILE
from fairlead_broker.certificates.local import local_certificates
from fairlead_broker.clock import SystemClock
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.telemetry import quiet_by_default
from fairlead_broker.wiring.start import data_url, start_broker, start_local_cluster

_ANY_PORT: Final = Endpoint("127.0.0.1", 0)
_STORE: Final = "coordination.sqlite"


@asynccontextmanager
async def cluster(
    brokers: int, data: Path | None, config: Mapping[str, str | int | float | bool], secure: bool
) -> AsyncIterator[tuple[str, Path | None, Path | None]]:
    """Run a number of brokers and yield the addresses of their data listeners, separated by commas.

    The yielded paths are the authority file and the administrator's token file of `secure` brokers, which serve with
    TLS and refuse operations that no ACL allows. Raises ValueError for fewer than one broker and for invalid
    configuration, and LogError if `data` cannot be used.
    """
    if brokers < 1:
        message = f"brokers is {brokers}; allowed: 1 or more"
        raise ValueError(message)
    with ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-test-")))
        folder.mkdir(parents=True, exist_ok=True)
        token_file = folder / "admin.token" if secure else None
        tls = local_certificates(folder / "tls", SystemClock().now_us()) if secure else None
        settings = [
            BrokerSettings(
                id=number,
                data=folder / f"broker-{number}",
                listen=(_ANY_PORT,),
                peer_listen=_ANY_PORT,
                ops_listen=_ANY_PORT,
                tls=tls,
                security=SecurityMode.ENFORCE if secure else None,
                admin_token_file=token_file,
                config_values={"auto.create.topics.enable": True, **config},
            )
            for number in range(brokers)
        ]
        stack.enter_context(quiet_by_default())
        if brokers == 1:
            running = await start_broker(settings[0])
            addresses = [data_url(running.addresses)]
            stop = running.stop
        else:
            local = await start_local_cluster(settings, folder / _STORE)
            addresses = [data_url(broker.addresses) for broker in local.brokers]
            stop = local.stop
        try:
            yield ",".join(addresses), None if tls is None else tls / CA_FILE, token_file
        finally:
            await stop()
