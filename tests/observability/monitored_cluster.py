"""Real brokers under load, scraped by a real Prometheus, for tests of boards and alerts.

The brokers run in a separate process, `fairlead dev up --brokers 3`. Prometheus is Debian's package; its targets have
the labels that the operator's PodMonitor sets. `docs/generate/board_pictures.py` uses this module too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from etcd_cluster import etcd_cluster, free_ports
from fairlead import TopicPartition
from fairlead.blocking import Admin, Consumer, Producer
from fairlead.errors import FairleadError
from warm_programs import warm_program

T = TypeVar("T")
SECONDS_MAX: Final = 60.0
"""Time limit of every wait; a loaded machine is slow."""
PAUSE_SECONDS: Final = 0.25
BROKERS: Final = 3
WRITE_SECONDS: Final = 0.05
"""Pause between two writes of a load."""
NAMESPACE, CLUSTER = "shop", "main"
CHOSEN: Final = {
    "$__rate_interval": "10s",
    "$namespace": NAMESPACE,
    "$cluster": CLUSTER,
    "$broker": ".*",
    "$topic": ".*",
    "$group": ".*",
    "$job_namespace": NAMESPACE,
}
"""Values that Grafana inserts for the variables of a board. `$1` of label_replace is not a variable."""


def wait_for(what: str, found: Callable[[], T | None], seconds: float = SECONDS_MAX) -> T:
    """Repeat a request until it is answered; raise `AssertionError` after the time limit."""
    # Prometheus does not report what it has scraped, so the request is repeated.
    never, asked = threading.Event(), 0
    while asked * PAUSE_SECONDS < seconds:
        if (answer := found()) is not None:
            return answer
        never.wait(PAUSE_SECONDS)
        asked += 1
    raise AssertionError(what)


def stop(process: subprocess.Popen[Any]) -> None:
    """Terminate a process that this module started."""
    with process:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def get(url: str) -> str:
    """Return the body of the answer to a GET."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@dataclass(frozen=True)
class Target:
    """An address to scrape, and the labels of its series."""

    job: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    path: str = "/metrics"


@dataclass(frozen=True)
class Brokers:
    """Running brokers of a cluster."""

    bootstrap: str
    ops: Sequence[str]

    @property
    def targets(self) -> list[Target]:
        """Return the scrape targets, with the labels that the operator's PodMonitor sets."""
        return [
            Target(
                "brokers",
                url.removeprefix("http://"),
                {
                    "namespace": NAMESPACE,
                    "fairlead_cluster": CLUSTER,
                    "fairlead_component": "broker",
                    "broker": f"{CLUSTER}-a-{number}",
                },
            )
            for number, url in enumerate(self.ops)
        ]

    def exposed(self) -> set[str]:
        """Return the name of every series that the brokers may expose."""
        return set().union(*(names_in(get(f"{url}/metrics")) for url in self.ops))


@contextmanager
def running_etcd(folder: Path) -> Iterator[list[Target]]:
    """Run a member of etcd, and yield its target with the labels that the operator's PodMonitor sets."""
    with asyncio.Runner() as runner:
        context = etcd_cluster(folder / "etcd")
        etcd = runner.run(context.__aenter__())
        labels = {"namespace": NAMESPACE, "fairlead_cluster": CLUSTER, "fairlead_component": "etcd"}
        try:
            yield [
                Target("etcd", url.removeprefix("http://"), {**labels, "pod": f"{CLUSTER}-etcd-{number}"})
                for number, url in enumerate(etcd.urls)
            ]
        finally:
            runner.run(context.__aexit__(None, None, None))


def names_in(exposition: str) -> set[str]:
    """Return the names of all series that a page of metrics declares, including all series of histograms."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE):
        names |= (
            {f"{name}{part}" for part in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
        )
    # The series of pages without declarations, such as Spark's, are taken from their samples.
    return names or set(re.findall(r"^([a-zA-Z_:][\w:]*)[{ ]", exposition, re.MULTILINE))


@contextmanager
def running_brokers(folder: Path, brokers: int = BROKERS) -> Iterator[Brokers]:
    """Run brokers in a separate process."""
    command = [warm_program(), "dev", "up", "--brokers", str(brokers), "--output", "json"]
    listen = ["--listen", "127.0.0.1:0", "--data", str(folder / "brokers")]
    with (folder / "brokers.log").open("wb") as log:
        process = subprocess.Popen([*command, *listen], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None, "a pipe was asked for"
        line = process.stdout.readline()
        assert line, (folder / "brokers.log").read_text()[-2000:]
        found = json.loads(line)["brokers"]
        yield Brokers(",".join(each["data"] for each in found), [each["ops"] for each in found])
    finally:
        stop(process)


class Load:
    """Producers and group members that run until they are stopped."""

    def __init__(self, bootstrap: str, replicas: int = BROKERS, write_seconds: float = WRITE_SECONDS) -> None:
        """Create a load that has not started."""
        self._bootstrap, self._replicas, self._write_seconds = bootstrap, replicas, write_seconds
        self._ended, self._read = threading.Event(), threading.Event()
        """Events that end the readers and then the producer; readers end first, because they wait for records."""
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=work.__name__)
            for work in (self._produce, self._keep_up, self._fall_behind)
        ]

    def start(self) -> None:
        """Create topics and start the load."""
        with Admin(self._bootstrap) as admin:
            admin.create_topic("orders", partitions=6, replication_factor=self._replicas)
            admin.create_topic("clicks", partitions=3, replication_factor=self._replicas)
            quorum = {"replication.mode": "quorum"}
            admin.create_topic("payments", partitions=1, replication_factor=self._replicas, config=quorum)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the load; raise the first error of its threads."""
        producing, *reading = self._threads
        self._ended.set()
        for thread in reading:
            thread.join(SECONDS_MAX)
        self._read.set()
        producing.join(SECONDS_MAX)
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - raised by stop()
            self._failures.append(failure)

    def _produce(self) -> None:
        with Producer(self._bootstrap) as producer:
            for number in itertools.count():
                for each in range(50):
                    producer.send("orders", b"order %d" % number, key=b"%d" % each)
                    producer.send("clicks", b"click %d" % number, key=b"%d" % (each % 7))
                producer.flush()
                if self._read.wait(self._write_seconds):
                    return

    def _keep_up(self) -> None:
        with Consumer(
            self._bootstrap, group="billing", topics=["orders", "clicks"], auto_commit_interval="1s"
        ) as consumer:
            for _ in consumer.batches():
                if self._ended.is_set():
                    return

    def _fall_behind(self) -> None:
        """Commit once for a group that reads nothing afterwards, and repeatedly send a request that is refused."""
        with Admin(self._bootstrap) as admin:
            places = {TopicPartition("orders", partition): 0 for partition in range(6)}
            admin.commit_group_offsets("audit", places)
            while not self._ended.wait(0.5):
                with suppress(FairleadError):
                    admin.describe_topic("no-such-topic")


@contextmanager
def load_on(bootstrap: str, replicas: int = BROKERS, write_seconds: float = WRITE_SECONDS) -> Iterator[Load]:
    """Run a load on a cluster."""
    load = Load(bootstrap, replicas, write_seconds)
    load.start()
    try:
        yield load
    finally:
        load.stop()


class Prometheus:
    """A running Prometheus, queried over its API."""

    def __init__(self, url: str, fetch: Callable[[str], str]) -> None:
        """Set `url`, which has no path, and `fetch`, which sends a GET from a network that reaches Prometheus."""
        self.url = url
        self._fetch = fetch

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer; raise `AssertionError` with the message of a refusal."""
        try:
            answer = self._fetch(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        except urllib.error.HTTPError as refusal:
            raise AssertionError(refusal.read().decode()) from None
        return json.loads(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current series of an expression, with a value for each variable of a board."""
        series: list[dict[str, Any]] = self.ask("query", query=filled_in(expression))["result"]
        return series

    def healthy_targets(self) -> int:
        """Return the number of targets that were scraped without an error."""
        return sum(each["health"] == "up" for each in self.ask("targets")["activeTargets"])


def filled_in(expression: str) -> str:
    """Return an expression with a value for every variable of the boards."""
    for name, value in sorted(CHOSEN.items(), reverse=True):
        expression = expression.replace(name, value)
    return expression


@contextmanager
def running_prometheus(
    folder: Path,
    targets: Sequence[Target],
    rules: Sequence[Path],
    *,
    enter: Sequence[str] = (),
    fetch: Callable[[str], str] = get,
) -> Iterator[Prometheus]:
    """Run Prometheus with targets and rule files, and yield it after every target was scraped once.

    `enter` is a prefix of the command, such as one that changes the network; `fetch` reaches Prometheus in that
    network.
    """
    port = free_port()
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": list(map(str, rules)),
        "scrape_configs": [
            {
                "job_name": f"{target.job}-{number}",
                "metrics_path": target.path,
                "static_configs": [{"targets": [target.address], "labels": dict(target.labels)}],
            }
            for number, target in enumerate(targets)
        ],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(configuration))
    command = [
        *enter, "prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    prometheus = Prometheus(f"http://127.0.0.1:{port}", fetch)

    def scraped() -> bool | None:
        assert process.poll() is None, (folder / "prometheus.log").read_text()[-2000:]
        with suppress(OSError, AssertionError):
            return prometheus.healthy_targets() == len(targets) or None
        return None

    try:
        wait_for("Prometheus does not scrape all its targets", scraped)
        yield prometheus
    finally:
        stop(process)


def free_port() -> int:
    """Return a free port that no outgoing connection and no other test takes before a program binds it."""
    return next(free_ports())
