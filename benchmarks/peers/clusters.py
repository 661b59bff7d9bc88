"""Processes of the three-broker clusters under test: Fairlead with etcd, and Kafka with its KRaft quorum.

`cluster.py` calls this module, which starts clusters and keeps track of each broker's process, but does not depend on
workloads.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peers.brokers import (
    HERE,
    JVM_BROKER_OPTIONS,
    PeerFailedError,
    cpu_seconds,
    free_port,
    run_java,
    wait_for_port,
)
from peers.delays import BrokerLinks

sys.path.insert(0, str(HERE.parent / "tests" / "etcd"))

from etcd_build import member_command

BROKERS = 3
STOP_SECONDS_MAX = 30.0
FAIRLEAD = Path(sys.executable).with_name("fairlead")


@dataclass(slots=True)
class ClusterProcesses:
    """All processes of one cluster, which are paused while the other cluster is measured."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    links: BrokerLinks | None = None
    """Relays between the brokers; None if the brokers are connected directly."""

    def with_links(self) -> None:
        """Relay all further connections between brokers, so that the connections of one broker can be delayed."""
        self.links = BrokerLinks(self._pids)

    def delay(self, name: str, seconds: float) -> None:
        """Delay all bytes between a broker process and the other brokers, in each direction; 0 ends the delay."""
        assert self.links is not None, "only relayed connections can be delayed"
        self.links.delay(name, seconds)

    def _pids(self) -> dict[str, int]:
        return {name: each.pid for name, each in tuple(self.processes.items()) if each.poll() is None}

    def pause(self) -> None:
        """Pause all processes of the cluster."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume all processes of the cluster."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Terminate all processes, dependent processes first, and remove their data."""
        self.resume()
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.links is not None:
            self.links.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cpu_seconds(self, name: str) -> float:
        """Return the processor time in seconds that a process has used so far, in user and system mode."""
        return cpu_seconds(self.processes[name].pid)

    def resident_mib(self, name: str) -> float:
        """Return the current resident memory of a process in MiB."""
        pages = Path(f"/proc/{self.processes[name].pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(number)


@dataclass(slots=True)
class FairleadCluster(ClusterProcesses):
    """Cluster of one etcd member and brokers, by default three, that are started by `fairlead broker start`."""

    etcd_url: str = ""
    lease_seconds: int = 6
    urls: dict[int, str] = field(default_factory=dict)

    @classmethod
    def start(
        cls, folder: Path, lease_seconds: int, *, brokers: int = BROKERS, has_links: bool = False
    ) -> FairleadCluster:
        """Start all processes, and return when the brokers serve; with `has_links`, brokers can be delayed."""
        folder.mkdir(parents=True)
        port, peer_port = free_port(), free_port()
        url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        cluster = cls(folder, etcd_url=url, lease_seconds=lease_seconds)
        if has_links:
            cluster.with_links()
        command = member_command(folder / "etcd", url, peer_url)
        with (folder / "etcd.log").open("wb") as log:
            cluster.processes["etcd"] = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for_port(port, cluster.processes["etcd"], folder / "etcd.log")
            for broker in range(brokers):
                cluster.start_broker(broker)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, separated by commas."""
        return ",".join(self.urls.values())

    def start_broker(self, broker: int) -> None:
        """Start or restart a broker, and return when the broker serves."""
        log = self.folder / f"broker-{broker}.log"
        command = [str(FAIRLEAD), "broker", "start", "--id", str(broker), "--etcd", self.etcd_url]
        command += ["--data", str(self.folder / f"broker-{broker}"), "--output", "json"]
        # After a restart, the broker keeps its address, as it would if clients used a DNS name.
        listen = self.urls.get(broker, "http://127.0.0.1:0").removeprefix("http://")
        peer_listen = "127.0.0.1:0"
        if self.links is not None:
            port = free_port()
            peer_listen = f"127.0.0.1:{port}"
            command += ["--peer-advertise", f"127.0.0.1:{self.links.relay(f'broker-{broker}', port)}"]
        for listener, address in (
            ("--listen", listen),
            ("--peer-listen", peer_listen),
            ("--ops-listen", "127.0.0.1:0"),
        ):
            command += [listener, address]
        command += ["--lease-seconds", str(self.lease_seconds)]
        with log.open("ab") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        self.processes[f"broker-{broker}"] = process
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            msg = f"broker {broker} did not start: {log.read_text()[-2000:]}"
            raise PeerFailedError(msg)
        self.urls[broker] = json.loads(ready)["brokers"][0]["data"]

    def kill_broker(self, broker: int) -> float:
        """Kill a broker with SIGKILL; return the monotonic time of the kill."""
        process = self.processes[f"broker-{broker}"]
        at = time.monotonic()
        process.kill()
        process.wait()
        return at

    def pause_broker(self, broker: int) -> float:
        """Pause a broker with SIGSTOP; return the monotonic time. `kill_broker` ends the paused process."""
        at = time.monotonic()
        self.processes[f"broker-{broker}"].send_signal(signal.SIGSTOP)
        return at

    def terminate_broker(self, broker: int) -> None:
        """Stop a broker gracefully, and wait until its process has ended."""
        process = self.processes[f"broker-{broker}"]
        process.terminate()
        process.wait(STOP_SECONDS_MAX)


@dataclass(slots=True)
class KafkaCluster(ClusterProcesses):
    """Cluster of three KRaft nodes, each of which is broker and controller."""

    bootstrap: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, folder: Path, jars: Path, *, has_links: bool = False) -> KafkaCluster:
        """Format the storage of three nodes, start the nodes and wait until they answer.

        With `has_links`, the nodes replicate over a separate listener, whose connections can be delayed.
        """
        folder.mkdir(parents=True)
        ports = [(free_port(), free_port()) for _ in range(BROKERS)]
        environment = {**os.environ, "CLASSPATH": f"{HERE / 'peers/kafka'}:{jars}/*"}
        cluster = cls(folder, environment=environment)
        if has_links:
            cluster.with_links()
        cluster.bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in ports)
        cluster_id = run_java(environment, "kafka.tools.StorageTool", "random-uuid").strip().splitlines()[-1]
        try:
            for node in range(1, BROKERS + 1):
                properties = folder / f"node-{node}.properties"
                text = _node_properties(folder / f"node-{node}", node, ports)
                if cluster.links is not None:
                    text += _replication_listener(cluster.links, node, ports[node - 1])
                properties.write_text(text, encoding="ascii")
                run_java(
                    environment, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)
                )
                with (folder / f"node-{node}.log").open("wb") as output:
                    cluster.processes[f"node-{node}"] = subprocess.Popen(
                        ["java", *JVM_BROKER_OPTIONS, "kafka.Kafka", str(properties)],
                        stdout=output,
                        stderr=output,
                        env=environment,
                    )
            for node, (port, _) in enumerate(ports, 1):
                wait_for_port(port, cluster.processes[f"node-{node}"], folder / f"node-{node}.log")
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def tool(self, main_class: str, *arguments: str) -> str:
        """Run one of Kafka's own tools against the cluster, and return its standard output."""
        return run_java(self.environment, main_class, *arguments)


def _replication_listener(links: BrokerLinks, node: int, ports: tuple[int, int]) -> str:
    """Return properties with a second listener for the other nodes, whose connections go through a relay."""
    (port, controller_port), own = ports, free_port()
    lines = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},REPLICATION://127.0.0.1:{own},"
        f"CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},"
        f"REPLICATION://127.0.0.1:{links.relay(f'node-{node}', own)}",
        "inter.broker.listener.name": "REPLICATION",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _node_properties(data: Path, node: int, ports: Sequence[tuple[int, int]]) -> str:
    port, controller_port = ports[node - 1]
    voters = ",".join(f"{number}@127.0.0.1:{each}" for number, (_, each) in enumerate(ports, 1))
    lines = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "min.insync.replicas": "2",
        "default.replication.factor": "3",
        "offsets.topic.replication.factor": "3",
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": "8388608",
        "replica.fetch.max.bytes": "8388608",
        "socket.send.buffer.bytes": "1048576",
        "socket.receive.buffer.bytes": "1048576",
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())
