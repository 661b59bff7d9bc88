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

from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.telemetry import quiet_by_default
from fairlead_broker.wiring.start import data_url, start_broker, start_local_cluster

_ANY_PORT: Final = Endpoint("127.0.0.1", 0)
_STORE: Final = "coordination.sqlite"


@asynccontextmanager
async def cluster(
    brokers: int, data: Path | None, config: Mapping[str, str | int | float | bool]
) -> AsyncIterator[str]:
    """Run a number of brokers and yield the addresses of their data listeners, separated by commas.

    Raises ValueError for fewer than one broker and for invalid configuration, and LogError if `data` cannot be used.
    """
    if brokers < 1:
        message = f"brokers is {brokers}; allowed: 1 or more"
        raise ValueError(message)
    with ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-test-")))
        settings = [
            BrokerSettings(
                id=number,
                data=folder / f"broker-{number}",
                listen=(_ANY_PORT,),
                peer_listen=_ANY_PORT,
                ops_listen=_ANY_PORT,
                config_values={"auto.create.topics.enable": True, **config},
            )
            for number in range(brokers)
        ]
        stack.enter_context(quiet_by_default())
        folder.mkdir(parents=True, exist_ok=True)
        if brokers == 1:
            running = await start_broker(settings[0])
            addresses = [data_url(running.addresses)]
            stop = running.stop
        else:
            local = await start_local_cluster(settings, folder / _STORE)
            addresses = [data_url(broker.addresses) for broker in local.brokers]
            stop = local.stop
        try:
            yield ",".join(addresses)
        finally:
            await stop()
