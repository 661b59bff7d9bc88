"""Three brokers on a real etcd, run in a thread of the test, for pipelines that also run on a single broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from etcd_cluster import etcd_cluster
from fairlead import Admin
from fairlead.blocking.loop_thread import LoopThread
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import start_broker

BROKERS: Final = 3
ANY: Final = Endpoint("127.0.0.1", 0)
CONFIG: Final = {"auto.create.topics.enable": True}
CLUSTER_CONFIG: Final = {"default.replication.factor": BROKERS, "min.insync.replicas": 2}


@contextmanager
def three_brokers_on_etcd(folder: Path) -> Iterator[str]:
    """Run three brokers until the end of the block, and yield their addresses separated by commas."""
    thread, stack = LoopThread("three brokers on etcd"), AsyncExitStack()
    thread.start()
    try:
        yield thread.run(stack.enter_async_context(_brokers(folder)))
    finally:
        try:
            thread.run(stack.aclose())
        finally:
            thread.stop()


@asynccontextmanager
async def _brokers(folder: Path) -> AsyncIterator[str]:
    async with etcd_cluster(folder / "etcd") as etcd, AsyncExitStack() as stack:
        addresses = []
        for number in range(BROKERS):
            settings = BrokerSettings(
                id=number,
                data=folder / f"broker-{number}",
                listen=ANY,
                peer_listen=ANY,
                ops_listen=ANY,
                etcd=",".join(etcd.urls),
                # A long lease keeps a slow broker registered on a busy machine.
                lease_seconds=30,
                config_values=CONFIG,
            )
            broker = await start_broker(settings)
            stack.push_async_callback(broker.stop)
            addresses.append(f"http://{broker.addresses.data}")
        async with Admin(addresses) as admin:
            await admin.alter_cluster_config(CLUSTER_CONFIG)
        yield ",".join(addresses)
