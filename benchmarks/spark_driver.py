"""A Spark session in a process of its own, and what it needs: the jars of Kafka's connector and the data.

Called by the cases of `spark.py`. The same session, and so the same warmed JVM, works for both sides: a session
takes ten seconds to start and a minute to become fast.
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

from peers import HERE, PeerFailedError, fetch_jars, session_cpu_seconds

CONNECTOR = "4.2.0"
PYTHON = Path(sys.executable).with_name("..") / "spark-oldest" / "bin" / "python"
STOP_SECONDS_MAX = 10.0


def fetch_connector(cache: Path) -> list[Path]:
    """The jars of Spark's Kafka connector, fetched by Maven into `cache` when they are not there yet."""
    jars = fetch_jars(HERE / "kafka" / "spark-connector.xml", cache / f"spark-sql-kafka-{CONNECTOR}")
    return sorted(jars.glob("*.jar"))


class SparkDriver:
    """The running session; it answers one request at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.version: str = self._answer()["ready"]

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one piece of work and return its result. Raises `PeerFailedError` with Spark's own words."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def cpu_seconds(self) -> float:
        """Processor time of the JVM and of all Python workers so far."""
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
    """A session with `jars`, its scratch files and its log in `folder`; ended with the block, and its JVM with it."""
    scratch, log = folder / "spark", folder / "spark.log"
    scratch.mkdir()
    command = [str(PYTHON), str(HERE / "spark_workload.py"), ",".join(str(jar) for jar in jars)]
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
            # The JVM and the workers are of the session that was started for this process alone.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
