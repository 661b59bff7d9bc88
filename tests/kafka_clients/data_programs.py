"""Programs that read and write topics over Kafka's protocol: Spark's own connector, Flink, Streams, and Kafka Connect.

Maven downloads the jars into the user's cache. Spark runs in the environment of the oldest PySpark that is supported,
because the connector does not exist for a newer release.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from client_programs import cache
from client_steps import (
    Client,
    ClientFailed,
    ClientMissing,
    Steps,
    Target,
    check,
    finished,
    program_steps,
)
from java_clients import fetched, newest_jars, require
from peers.brokers import KAFKA_VERSION, fetch_jars, free_port
from peers.spark_driver import CONNECTOR, PYTHON, fetch_connector

from waiting import pause_blocking

FOLDER: Final = Path(__file__).parent
SECONDS_MAX: Final = 120.0
ADD_OPENS: Final = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.time")
)


def data_clients() -> Iterator[Client]:
    """Yield the programs, which are installed when their steps begin."""
    yield Client("Spark: spark-sql-kafka", CONNECTOR, _spark)
    yield Client("Flink: flink-connector-kafka", _flink_version(), _flink)
    yield Client("Java: transactions", KAFKA_VERSION, _transactions)
    yield Client("Kafka Streams", KAFKA_VERSION, _streams)
    yield Client("Kafka Connect: standalone", KAFKA_VERSION, _connect_standalone)
    yield Client("Kafka Connect: distributed", KAFKA_VERSION, _connect_distributed)


def _spark(target: Target) -> Iterator[str]:
    require("java", "mvn")
    if not PYTHON.exists():
        message = "the environment of the oldest PySpark is missing; run `make setup`"
        raise ClientMissing(message)
    jars = ",".join(map(str, fetched(lambda: fetch_connector(cache()))))
    environment = {"CONNECTOR_JARS": jars, "PYSPARK_PYTHON": str(PYTHON)}
    program = [str(PYTHON), str(FOLDER / "python/spark_program.py")]
    yield from program_steps(program, environment=environment)(target)


def _flink_version() -> str:
    found = re.search(
        r"<artifactId>flink-connector-kafka</artifactId>\s*<version>(\S+)<", _flink_definition().read_text()
    )
    assert found is not None, "no version of Flink's connector"
    return found[1]


def _flink_definition() -> Path:
    return FOLDER / "java/flink.xml"


def _flink(target: Target) -> Iterator[str]:
    jars = _jars("flink.xml", f"flink-{_flink_version()}")
    yield from _java_program("FlinkProgram", jars, *ADD_OPENS)(target)


def _transactions(target: Target) -> Iterator[str]:
    require("java", "javac", "mvn")
    yield from _java_program("TransactionProgram", newest_jars())(target)


def _streams(target: Target) -> Iterator[str]:
    yield from _java_program("StreamsProgram", _jars("streams.xml", f"streams-{KAFKA_VERSION}"))(target)


def _jars(definition: str, folder: str) -> str:
    """Return the class path of the jars of a pom, after downloading missing jars."""
    require("java", "javac", "mvn")
    return f"{fetched(lambda: fetch_jars(FOLDER / 'java' / definition, cache() / folder))}/*"


def _java_program(name: str, jars: str, *options: str) -> Steps:
    """Return the steps of a program in the folder `java`, which is compiled when the steps begin."""

    def steps(target: Target) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as classes:
            path = f"{classes}:{jars}"
            check(finished(["javac", "-cp", path, "-d", classes, str(FOLDER / f"java/{name}.java")]))
            yield from program_steps(["java", *options, "-Xmx512m", "-cp", path, name])(target)

    return steps


class ConnectWorker:
    """A worker of Kafka Connect with the file connectors."""

    def __init__(self, folder: Path, target: Target, mode: str, settings: dict[str, str]) -> None:
        """`mode` is `Standalone` or `Distributed`."""
        plugins = fetched(
            lambda: fetch_jars(FOLDER / "java/connect-file.xml", cache() / f"connect-file-{KAFKA_VERSION}")
        )
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = folder / "connect.log"
        properties = {
            "bootstrap.servers": target.bootstrap,
            "listeners": self.url,
            "plugin.path": str(plugins),
            # Without a search of all classes, which takes half a minute on a busy machine.
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": "500",
            **settings,
        }
        path = folder / "worker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", newest_jars()]
        command += [f"org.apache.kafka.connect.cli.Connect{mode}", str(path)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def add(self, name: str, **config: str) -> None:
        """Create a connector over REST, after the worker has started."""
        body = json.dumps({"name": name, "config": {"name": name, "tasks.max": "1", **config}}).encode()
        request = urllib.request.Request(
            f"{self.url}/connectors", body, {"Content-Type": "application/json"}, method="POST"
        )

        def created() -> bool:
            with suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
                return bool(answer.status == 201)
            return False

        self.wait(created, f"connector {name} was not created")

    def wait(self, met: Any, what: str) -> None:
        """Wait for a condition; raise `ClientFailed` with the end of the worker's log."""
        deadline = time.monotonic() + SECONDS_MAX
        while not met():
            if time.monotonic() > deadline or self._process.poll() is not None:
                lines = [
                    line
                    for line in self._log.read_text().splitlines()
                    if "ERROR" in line or "Exception" in line
                ]
                message = f"{what}: {' '.join(lines)[-300:]}"
                raise ClientFailed(message)
            pause_blocking(0.2)

    def stop(self) -> None:
        """End the worker."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def _worker(folder: Path, target: Target, mode: str, settings: dict[str, str]) -> Iterator[ConnectWorker]:
    worker = ConnectWorker(folder, target, mode, settings)
    try:
        yield worker
    finally:
        worker.stop()


def _connect_standalone(target: Target) -> Iterator[str]:
    require("java", "mvn")
    with tempfile.TemporaryDirectory() as name:
        settings = {"offset.storage.file.filename": f"{name}/offsets"}
        yield from _copy_files(Path(name), target, "Standalone", settings)


def _connect_distributed(target: Target) -> Iterator[str]:
    require("java", "mvn")
    settings = {"group.id": target.group, "exactly.once.source.support": "enabled"}
    for kind in ("config", "offset", "status"):
        settings[f"{kind}.storage.topic"] = f"{target.topic}-{kind}"
        settings[f"{kind}.storage.replication.factor"] = "3"
    with tempfile.TemporaryDirectory() as name:
        yield from _copy_files(Path(name), target, "Distributed", settings)


def _copy_files(folder: Path, target: Target, mode: str, settings: dict[str, str]) -> Iterator[str]:
    """Copy a file to a topic and the topic to another file; restart the worker, which must not copy a line again."""
    lines = [f"line {number}" for number in range(2 * target.count)]
    source, sink = folder / "source", folder / "sink"

    def wrote(worker: ConnectWorker, wanted: list[str]) -> None:
        def complete() -> bool:
            return sink.exists() and len(sink.read_text().splitlines()) >= len(wanted)

        worker.wait(complete, f"{sink.name} does not have {len(wanted)} lines")
        if sorted(sink.read_text().splitlines()) != sorted(wanted):
            message = f"the sink's lines differ from the {len(wanted)} lines of the source"
            raise ClientFailed(message)

    def connectors(worker: ConnectWorker) -> None:
        worker.add(
            "source", **{"connector.class": "FileStreamSource", "file": str(source), "topic": target.topic}
        )
        worker.add("sink", **{"connector.class": "FileStreamSink", "file": str(sink), "topics": target.topic})

    source.write_text("".join(f"{line}\n" for line in lines[: target.count]))
    with _worker(folder, target, mode, settings) as worker:
        connectors(worker)
        wrote(worker, lines[: target.count])
    yield "FileStreamSource and FileStreamSink copy each line once"
    with source.open("a") as appended:
        appended.writelines(f"{line}\n" for line in lines[target.count :])
    with _worker(folder, target, mode, settings) as worker:
        if mode == "Standalone":
            # A distributed worker finds its connectors in a topic.
            connectors(worker)
        wrote(worker, lines)
    yield "a restarted worker continues at its offsets"
