"""Processes of the two measured systems: starts, pauses and stops brokers, and reads their memory.

The benchmark cases use this module, which defines how a broker is started and where its data is stored, but does not
depend on workloads or statistics. A peer that is not measured is stopped with SIGSTOP, so that the client and the
broker of the measured peer have the machine to themselves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[1]
BYTECODE = HERE.parent / "build" / "bytecode"
KAFKA_VERSION = "4.3.1"
JVM_BROKER_OPTIONS = ("-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
JVM_TOOL_OPTIONS = ("-Xmx512m",)
START_SECONDS_MAX = 60.0
RUN_SECONDS_MAX = 600.0
"""Time in seconds after which one side of a workload is considered failed."""
MEMORY_BYTES = 1 << 30
"""Number of bytes to touch before a measurement: twice the memory that a measured run uses."""


class PeerFailedError(RuntimeError):
    """A broker or one of its tools failed, or returned a result that invalidates the measurement."""


def free_port() -> int:
    """Return a TCP port that was free on 127.0.0.1 a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """Return the processor time in seconds that a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def session_cpu_seconds(session: int) -> float:
    """Return the processor time of all processes in a session, including ended child processes."""
    ticks = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # the process has already ended
            continue
        if int(fields[3]) == session:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def with_bytecode() -> dict[str, str]:
    """Return the environment of a program that keeps its bytecode, as an installed program does.

    If PYTHONDONTWRITEBYTECODE is set, compiling the modules of a checkout takes a third of each start.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": str(BYTECODE)}


@dataclass(slots=True)
class PeerProcess:
    """A broker process, and the folder that contains its data."""

    name: str
    data: Path
    process: subprocess.Popen[bytes]
    log: Path
    start_seconds: float = field(default=0.0, kw_only=True)
    """Seconds from the start of the process, after its storage was formatted, until the process was ready for
    clients."""

    def pause(self) -> None:
        """Pause the process, so that the other peer has all cores."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the paused process."""
        self.process.send_signal(signal.SIGCONT)

    def resident_bytes(self, what: str = "VmRSS") -> int:
        """Return the current resident memory (`VmRSS`) or its peak (`VmHWM`), in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)
        if found is None:
            msg = f"{self.name}: no {what} in /proc/{self.process.pid}/status"
            raise PeerFailedError(msg)
        return int(found.group(1)) * 1024

    def stored_bytes(self, folders: str) -> int:
        """Return the bytes that the folders matching a pattern use on the disk; holes in sparse files are excluded."""
        files = (file for folder in self.data.rglob(folders) for file in folder.rglob("*") if file.is_file())
        return sum(file.lstat().st_blocks * 512 for file in files)

    def stop(self) -> None:
        """Terminate the process, and remove its data."""
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.data, ignore_errors=True)


@dataclass(slots=True)
class FairleadPeer(PeerProcess):
    """Process of `fairlead broker start` with embedded coordination."""

    url: str = ""
    ops_url: str = ""
    command: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, *options: str, name: str = "fairlead") -> FairleadPeer:
        """Start a broker with its data under `folder`, and wait until the broker prints that it is ready."""
        data, log = folder / name, folder / f"{name}.log"
        data.mkdir(parents=True)
        command = [str(Path(sys.executable).with_name("fairlead")), "broker", "start", "--data", str(data)]
        for listener in ("--listen", "--peer-listen", "--ops-listen"):
            command += [listener, "127.0.0.1:0"]
        command += ["--output", "json", *options]
        process, ready, taken = _ready(command, log)
        return cls(
            name=name, data=data, process=process, log=log, url=ready["data"], ops_url=ready["ops"],
            start_seconds=taken, command=command,
        )  # fmt: skip

    def restart(self) -> float:
        """Stop the broker gracefully and start it on its data; return the seconds until it is ready."""
        self.process.terminate()
        self.process.wait(RUN_SECONDS_MAX)
        self.process, ready, taken = _ready(self.command, self.log)
        self.url, self.ops_url = ready["data"], ready["ops"]
        return taken

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        with urllib.request.urlopen(f"{self.ops_url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        if found is None:
            msg = f"{self.name}: no metric {name}"
            raise PeerFailedError(msg)
        return float(found.group(1))


def _ready(command: list[str], log: Path) -> tuple[subprocess.Popen[bytes], dict[str, str], float]:
    """Start a broker; return its process, its addresses, and the seconds until it was ready."""
    began = time.monotonic()
    with log.open("ab") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=with_bytecode())
    assert process.stdout is not None
    ready = process.stdout.readline()
    if not ready:
        msg = f"fairlead did not start: {log.read_text()[-2000:]}"
        raise PeerFailedError(msg)
    return process, json.loads(ready)["brokers"][0], time.monotonic() - began


@dataclass(slots=True)
class KafkaPeer(PeerProcess):
    """Process of Apache Kafka: one KRaft node that is broker and controller."""

    bootstrap: str = ""
    tls_bootstrap: str = ""
    """Address of the listener with TLS; empty without certificates."""
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(
        cls, folder: Path, jars: Path, tls: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> KafkaPeer:
        """Start a node with its data under `folder`, and wait until its port is open.

        `tls`: folder with the file `kafka.pem` (key and certificate), for a second listener with TLS. `settings`:
        further properties of the node.
        """
        data, log = folder / "kafka", folder / "kafka.log"
        data.mkdir(parents=True)
        port, controller_port = free_port(), free_port()
        properties = folder / "kafka.properties"
        text = _kafka_properties(data, port, controller_port)
        text += "".join(f"{key}={value}\n" for key, value in (settings or {}).items())
        tls_port = 0
        if tls is not None:
            tls_port = free_port()
            text += (
                f"listeners=PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port},"
                f"CONTROLLER://127.0.0.1:{controller_port}\n"
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}\n"
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT\n"
                f"ssl.keystore.type=PEM\nssl.keystore.location={tls / 'kafka.pem'}\nssl.enabled.protocols=TLSv1.3\n"
            )
        properties.write_text(text, encoding="ascii")
        environment = {**os.environ, "CLASSPATH": f"{HERE / 'peers/kafka'}:{jars}/*"}
        cluster = run_java(environment, "kafka.tools.StorageTool", "random-uuid").strip().splitlines()[-1]
        run_java(environment, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["java", *JVM_BROKER_OPTIONS, "kafka.Kafka", str(properties)],
                stdout=output,
                stderr=output,
                env=environment,
            )
        wait_for_port(port, process, log)
        taken, bootstrap = time.monotonic() - began, f"127.0.0.1:{port}"
        return cls(
            "kafka", data, process, log, bootstrap=bootstrap, environment=environment, start_seconds=taken,
            tls_bootstrap=f"127.0.0.1:{tls_port}" if tls_port else "",
        )  # fmt: skip

    def tool(self, main_class: str, *arguments: str) -> str:
        """Run one of Kafka's own tools against this node, and return its standard output."""
        return run_java(self.environment, main_class, *arguments)


def alone(peer: PeerProcess, peers: Iterable[PeerProcess]) -> None:
    """Reserve the machine for `peer`: pause the other peers, and wait until dirty pages are written back."""
    for other in peers:
        if other is not peer:
            other.pause()
    os.sync()
    peer.resume()


def take_memory() -> None:
    """Touch and free as much memory as a measurement uses, since hosts of virtual machines reclaim free memory.

    The host returns reclaimed memory page by page, which makes access twenty times slower than normal. Writing 400 MB
    took 1.0 seconds, or 2.5 seconds if the host had reclaimed the memory; a measurement that followed a deletion used
    memory that the other peer had already touched.
    """
    np.ones(MEMORY_BYTES, np.uint8)


@contextmanager
def both_peers(folder: Path, jars: Path) -> Iterator[tuple[FairleadPeer, KafkaPeer]]:
    """Run a broker of each system with its data under `folder`; stop both brokers at the end of the block."""
    fairlead = FairleadPeer.start(folder)
    try:
        kafka = KafkaPeer.start(folder, jars)
        try:
            yield fairlead, kafka
        finally:
            kafka.stop()
    finally:
        fairlead.stop()


def fetch_kafka(cache: Path) -> Path:
    """Return the folder with Kafka's jars, which Maven downloads into `cache` unless they are already there."""
    return fetch_jars(HERE / "peers/kafka" / "pom.xml", cache / f"kafka-{KAFKA_VERSION}")


def fetch_jars(definition: Path, jars: Path) -> Path:
    """Copy the dependencies of a pom into the folder `jars` with Maven, unless the folder exists; return the folder."""
    assert jars.is_absolute(), f"Maven would take {jars} as relative to {definition}"
    if not jars.is_dir():
        partial = jars.with_suffix(".partial")
        command = ["mvn", "-q", "-B", "-f", str(definition), "dependency:copy-dependencies"]
        arguments = ("-DincludeScope=runtime", f"-DoutputDirectory={partial}")
        # Standard output belongs to the caller's report.
        subprocess.run([*command, *arguments], check=True, stdout=sys.stderr)
        partial.rename(jars)
    return jars


def run_java(environment: dict[str, str], main_class: str, *arguments: str) -> str:
    """Run a Java program to its end, and return its standard output. Raises `PeerFailedError`."""
    command = ["java", *JVM_TOOL_OPTIONS, main_class, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"{main_class} ended with {done.returncode}: {done.stderr[-2000:]}"
        raise PeerFailedError(msg)
    return done.stdout


def _kafka_properties(data: Path, port: int, controller_port: int) -> str:
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": "8388608",
        "socket.send.buffer.bytes": "1048576",
        "socket.receive.buffer.bytes": "1048576",
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process listens on a port. Raises `PeerFailedError` if the process ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            msg = f"the broker ended: {log.read_text()[-2000:]}"
            raise PeerFailedError(msg)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    msg = f"the broker did not listen on port {port} within {START_SECONDS_MAX} s"
    raise PeerFailedError(msg)
