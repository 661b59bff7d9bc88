"""Brokers of fake pods: each pod of a namespace has a real broker process with the pod's lifetime.

The processes replace the kubelet of a real node, without containers. For a new pod, `fairlead broker start` is started
with the pod's id, and for a deleted pod its process is stopped by SIGTERM. Each broker's data stays in a folder named
by its id, as on a volume. Brokers listen on loopback addresses that differ only by their id, so that an operator finds
them with an address template.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from urllib3.exceptions import HTTPError

from cluster_words import BROKERS
from etcd_cluster import etcd_cluster, free_ports
from fairlead import Admin
from fairlead.errors import FairleadError
from kube_client import KubeClient, Manifest, Refused, WaitedInVain
from warm_programs import WarmProcess, start

T = TypeVar("T")
P = TypeVar("P", bound="BrokerProcesses")
STOP_SECONDS = 30.0
WATCH_SECONDS = 600.0
WAIT_SECONDS = 100.0
POLL_SECONDS = 0.2


@dataclass(slots=True)
class BrokerProcesses:
    """Follows the pods of one namespace until it is closed."""

    client: KubeClient
    namespace: str
    folder: Path
    etcd: tuple[str, ...]
    runner: asyncio.Runner
    ports: tuple[int, int, int]
    running: dict[int, tuple[str, WarmProcess]] = field(default_factory=dict)
    """Uid of the pod and process, by broker."""
    started: list[int] = field(default_factory=list)
    """Ids of started brokers, one for each start, in order."""
    killed: list[int] = field(default_factory=list)
    """Ids of brokers that did not stop in time."""
    most_away: int = 0
    """Maximum number of brokers without a pod at one time, among brokers that had a pod before."""
    core: int | None = None
    """Id from which brokers are not counted as missing, because they leave permanently."""
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """The operator's template of broker addresses."""
        return f"http://127.0.1.{{id}}:{self.ports[0]}"

    def ask(self, call: Callable[[Admin], Awaitable[T]], brokers: int = 3) -> T:
        """Send a request to one of the brokers with the ids below `brokers`, and return the answer."""

        async def asked() -> T:
            # The last broker is asked first: tests freeze the first broker, and waiting for it would take half a
            # minute.
            addresses = [self.url.format(id=broker) for broker in reversed(range(brokers))]
            async with Admin(addresses, retry_timeout="30s") as admin:
                return await call(admin)

        return self.runner.run(asked())

    def wait_until(self, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait until brokers satisfy a condition, by polling; raise `AssertionError` after `seconds`."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"waited {seconds} s in vain; pods so far: {self.started}"
            self.over.wait(POLL_SECONDS)

    def serves(self, brokers: int) -> bool:
        """Return whether `brokers` brokers are registered."""
        try:
            known = self.ask(lambda admin: admin.brokers(), brokers)
        except FairleadError:
            return False
        return sum(each.state == "running" for each in known) >= brokers

    def follow(self) -> None:
        """Follow changes of the pods until closed."""
        while not self.over.is_set():
            try:
                self.client.wait_list(
                    "pods", self.namespace, self._look, selector=BROKERS, seconds=WATCH_SECONDS
                )
            except (WaitedInVain, HTTPError, Refused, OSError):
                continue

    def _look(self, pods: list[Manifest]) -> bool:
        if self.over.is_set():
            return True
        there = {
            int(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"]): pod["metadata"]["uid"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
        }
        left = [broker for broker, (uid, _) in self.running.items() if there.get(broker) != uid]
        kept = self.running.keys() - set(left)
        counted = {broker for broker in self.started if self.core is None or broker < self.core}
        self.most_away = max(self.most_away, len(counted - kept))
        for broker in left:
            # Processes are stopped concurrently, as on nodes.
            self.running[broker][1].terminate()
            self.running[broker][1].send_signal(signal.SIGCONT)
        for broker in left:
            self._stop(broker)
        for broker, uid in there.items():
            if broker not in self.running:
                self.running[broker] = (uid, self._start(broker))
                self.started.append(broker)
        return False

    def _start(self, broker: int) -> WarmProcess:
        data, peer, ops = self.ports
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("FAIRLEAD_")}
        settings = {
            "FAIRLEAD_ID": str(broker),
            "FAIRLEAD_DATA": str(self.folder / f"broker-{broker}"),
            "FAIRLEAD_ETCD": ",".join(self.etcd),
            "FAIRLEAD_LISTEN": f"127.0.1.{broker}:{data}",
            "FAIRLEAD_PEER_LISTEN": f"127.0.1.{broker}:{peer}",
            "FAIRLEAD_OPS_LISTEN": f"127.0.1.{broker}:{ops}",
        }
        with (self.folder / f"broker-{broker}.log").open("ab", buffering=0) as log:
            log.write(f"{datetime.now(UTC)} started\n".encode())
            return start("broker", "start", environment={**inherited, **settings}, output=log, errors=log)

    def _stop(self, broker: int) -> None:
        _, process = self.running.pop(broker)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.killed.append(broker)
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop every broker."""
        self.over.set()
        for broker in tuple(self.running):
            self.running[broker][1].kill()
            self._stop(broker)


@contextmanager
def broker_processes(client: KubeClient, namespace: str, folder: Path) -> Iterator[BrokerProcesses]:
    """Run a process for each pod of a namespace, on a separate etcd."""
    with processes_of(client, namespace, folder, BrokerProcesses) as processes:
        yield processes


@contextmanager
def processes_of(client: KubeClient, namespace: str, folder: Path, of: type[P]) -> Iterator[P]:
    """Run a process for each pod of a namespace, on a separate etcd."""
    ports = free_ports()
    with asyncio.Runner() as runner, ExitStack() as stack:
        context = etcd_cluster(folder / "etcd")
        etcd = runner.run(context.__aenter__())
        stack.callback(lambda: runner.run(context.__aexit__(None, None, None)))
        chosen = (next(ports), next(ports), next(ports))
        processes = of(client, namespace, folder, tuple(etcd.urls), runner, chosen)
        stack.callback(processes.close)
        threading.Thread(target=processes.follow, daemon=True).start()
        yield processes
