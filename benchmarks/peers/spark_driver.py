"""A Spark session in a separate process, and the jars of Kafka's connector that the session needs.

The cases of `spark.py` use this module. Fairlead and Kafka are measured in the same session with the same warm JVM,
since a session takes ten seconds to start and a minute to warm up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers.brokers import HERE, PeerFailedError, fetch_jars, session_cpu_seconds

CONNECTOR = "4.2.0"
PYTHON = Path(sys.executable).with_name("..") / "spark-oldest" / "bin" / "python"
STOP_SECONDS_MAX = 10.0


def fetch_connector(cache: Path) -> list[Path]:
    """Return the jars of Spark's Kafka connector, which Maven downloads into `cache` unless they are already there."""
    jars = fetch_jars(HERE / "peers/kafka" / "spark-connector.xml", cache / f"spark-sql-kafka-{CONNECTOR}")
    return sorted(jars.glob("*.jar"))


class SparkDriver:
    """The running Spark session, which answers one request at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.version: str = self._answer()["ready"]

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and return its result. Raises `PeerFailedError` with Spark's message."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def cpu_seconds(self) -> float:
        """Return the processor time in seconds that the JVM and all Python workers have used so far."""
        return session_cpu_seconds(self._process.pid)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            msg = f"spark ended: {self._log.read_text()[-3000:]}"
            raise PeerFailedError(msg)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            msg = f"spark: {answer['error'][-6000:]}"
            raise PeerFailedError(msg)
        return answer


@contextmanager
def spark_driver(folder: Path, jars: list[Path]) -> Iterator[SparkDriver]:
    """Run a session with `jars`, with its log and temporary files in `folder`, until the block ends."""
    scratch, log = folder / "spark", folder / "spark.log"
    scratch.mkdir()
    command = [str(PYTHON), str(HERE / "workloads/spark_workload.py"), ",".join(str(jar) for jar in jars)]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(scratch), "PYSPARK_PYTHON": str(PYTHON)}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield SparkDriver(process, log)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # The JVM and the workers belong to the process group that was started for this Spark session alone.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
