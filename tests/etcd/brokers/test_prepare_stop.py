"""Tests of brokers on a real etcd as in pods: variables and a mounted file, probes, and the hook before a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from etcd_cluster import EtcdCluster, free_ports
from fairlead import Admin, FairleadError
from refusals import missing, raises
from warm_programs import FAIRLEAD, warm_program

SECONDS = 60.0
POOL = (0, 1, 2)


@dataclass(slots=True)
class Pod:
    """A broker and the stop hook of its pod, with the same environment."""

    number: int
    environment: dict[str, str]
    broker: BrokerProcess
    hooks: list[subprocess.Popen[str]] = field(default_factory=list)

    def prepare_stop(self, seconds: float = SECONDS) -> subprocess.Popen[str]:
        """Start the hook."""
        hook = subprocess.Popen(
            [warm_program(), "broker", "prepare-stop", "--seconds", str(seconds)],
            env={**os.environ, **self.environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.hooks.append(hook)
        return hook

    def prepared(self, seconds: float = SECONDS) -> str:
        """Run the hook, check that it succeeds, and return its output."""
        return said(self.prepare_stop(seconds))

    def restart(self) -> None:
        """Stop and start the broker, like a pod that is created again with the same volume."""
        assert self.broker.stop() == 0
        self.broker.start()

    def end(self) -> None:
        """Stop all processes."""
        for hook in self.hooks:
            hook.kill()
            hook.communicate()
        self.broker.kill()


def said(hook: subprocess.Popen[str]) -> str:
    """Return the output of a hook that has ended with exit code 0."""
    _, told = hook.communicate(timeout=SECONDS)
    assert hook.returncode == 0, told
    return told


def pod(folder: Path, etcd: str, number: int, ports: list[int], **more: str) -> Pod:
    """Create a pod from the common template, with the values that Kubernetes fills in."""
    data, peer, ops = ports
    environment = {
        "POD_NAME": f"main-a-{number}",
        "POD_NAMESPACE": "orders",
        "POD_IP": "127.0.0.1",
        "FAIRLEAD_ID": str(number),
        "FAIRLEAD_RACK": "",
        "FAIRLEAD_LISTEN": f"0.0.0.0:{data}",
        "FAIRLEAD_SECURITY": "open",
        "FAIRLEAD_ADVERTISE": f"{{ip}}:{data}",
        "FAIRLEAD_PEER_ADVERTISE": f"{{ip}}:{peer}",
        "FAIRLEAD_ETCD": etcd,
        "FAIRLEAD_CONFIG": str(folder / "broker.yaml"),
        **more,
    }
    listeners = (f"0.0.0.0:{data}", f"127.0.0.1:{peer}", f"127.0.0.1:{ops}")
    broker = BrokerProcess(folder / f"data-{number}", environment, listeners=listeners)
    return Pod(number, environment, broker)


@pytest.fixture
async def pods(alone: EtcdCluster, tmp_path: Path) -> AsyncIterator[list[Pod]]:
    """Yield three brokers that serve, configured by one mounted file."""
    (tmp_path / "broker.yaml").write_text(
        "cluster: orders.main\nconfig_values:\n  broker.session.timeout.ms: 2000\n"
    )
    ports = free_ports()
    async with AsyncExitStack() as stack:
        made = []
        for number in POOL:
            each = pod(tmp_path, alone.urls[0], number, [next(ports) for _ in range(3)])
            stack.callback(each.end)
            each.broker.start()
            made.append(each)
        yield made


async def in_sync(admin: Admin, topic: str) -> list[set[int]]:
    """Return the in-sync replicas of every partition."""
    metadata = await admin.metadata([topic])
    return [set(partition.isr) for partition in metadata.topics[0].partitions]


async def test_two_pods_that_are_to_stop_go_one_after_the_other(pods: list[Pod]) -> None:
    """A second pod's hook waits until the first broker is back and in sync; the hook with the permit does not wait."""
    first, second, third = pods
    async with Admin(third.broker.url) as admin:
        await admin.create_topic(
            "orders", partitions=4, replication_factor=3, config={"min.insync.replicas": 2}
        )
        permitted = first.prepared()
        waiting = second.prepare_stop()
        assert waiting.stderr is not None
        waits = waiting.stderr.readline()
        first.restart()
        told = said(waiting)
        # Only the broker that got the permit certainly knows what the permit depends on.
        async with Admin(second.broker.url) as permitted_to:
            replicas = await in_sync(permitted_to, "orders")
        again = second.prepared()
        too_long = third.prepared(seconds=0.5)

    assert "broker 0 may stop" in permitted
    assert missing(waits, "waits", 1, 0) == []
    assert "broker 1 may stop" in told
    assert replicas == [{0, 1, 2}] * 4
    assert "broker 1 may stop" in again
    assert "waits" not in again
    assert missing(too_long, "stops", 2, 1) == []


async def test_addresses_and_rack_of_the_pod_are_registered(alone: EtcdCluster, tmp_path: Path) -> None:
    """Brokers register the addresses of their settings, and no rack if the node has no zone.

    `advertise_each` precedes `advertise`, whose placeholders are filled in. Configuration keys in the mounted file
    are applied.
    """
    ports = [next(free) for free in [free_ports()] for _ in range(6)]
    text = f"cluster: orders.main\nadvertise_each: {{'1': 'localhost:{ports[3]}'}}\n"
    (tmp_path / "broker.yaml").write_text(text + "config_values: {broker.session.timeout.ms: 2000}\n")
    made = [pod(tmp_path, alone.urls[0], 0, ports[:3]), pod(tmp_path, alone.urls[0], 1, ports[3:])]
    try:
        for each in made:
            each.broker.start()
        async with Admin(made[0].broker.url) as admin:
            brokers = await admin.brokers()
            config = await admin.broker_config(0)
            with raises(FairleadError, "num.io.threads"):
                await admin.alter_broker_config(0, {"num.io.threads": 8})
    finally:
        for each in made:
            each.end()

    told = [(each.id, each.address, each.rack) for each in brokers]
    assert told == [(0, f"http://127.0.0.1:{ports[0]}", None), (1, f"http://localhost:{ports[3]}", None)]
    assert config["broker.session.timeout.ms"].value == "2000"


def test_a_hook_beside_a_broker_that_does_not_serve_ends_at_once(tmp_path: Path) -> None:
    """The hook of a broker that does not serve ends at once, even with invalid settings."""
    port = next(free_ports())
    (tmp_path / "broker.yaml").write_text("{}")
    away = pod(tmp_path, "http://127.0.0.1:1", 4, [port, port, port])
    wrong = pod(tmp_path, "http://127.0.0.1:1", 4, [port, port, port], FAIRLEAD_ADVERTISE="{zone}:1")

    assert missing(away.prepared(), 4, f"127.0.0.1:{port}") == []
    assert "unknown placeholder {zone}" in wrong.prepared()


def test_a_broker_waits_for_names_that_are_not_known_yet(tmp_path: Path) -> None:
    """A broker that cannot resolve etcd is live but not ready, fails its probe while suspended, and stops cleanly."""
    ports = [next(free) for free in [free_ports()] for _ in range(3)]
    (tmp_path / "broker.yaml").write_text("{}")
    waiting = pod(tmp_path, "http://main-etcd-0.main-etcd-peers.orders.svc.invalid:2379", 0, ports)
    ops = f"http://127.0.0.1:{ports[2]}"
    with subprocess.Popen(
        [FAIRLEAD, "broker", "start"],
        env={
            **os.environ,
            **waiting.environment,
            "FAIRLEAD_DATA": str(tmp_path / "data"),
            "FAIRLEAD_OPS_LISTEN": f"127.0.0.1:{ports[2]}",
            "FAIRLEAD_PEER_LISTEN": f"127.0.0.1:{ports[1]}",
            "FAIRLEAD_LOG_FORMAT": "console",
        },
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            away = next(line for line in process.stderr if "coordination is unavailable" in line)
            alive = status(f"{ops}/healthz"), status(f"{ops}/readyz")
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            stands = status(f"{ops}/healthz")
            os.kill(process.pid, signal.SIGCONT)
            process.terminate()
            process.communicate(timeout=SECONDS)
        finally:
            process.kill()

    assert "svc.invalid" in away
    assert alive == (200, 503)
    assert stands is None
    assert process.returncode == 0


def status(url: str) -> int | None:
    """Return the answer to a probe, or None if there is no answer in time."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except TimeoutError:
        return None
