"""A streaming query of Spark in a separate process whose metrics Prometheus can scrape.

`test_spark_board.py` and `docs/generate/board_pictures.py` start the process of the query; its program is
`watched_job.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monitored_cluster import NAMESPACE, Target, free_port, get, stop, wait_for
from quick_java import quick_java
from spark_session import QUICK_WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM: Final = Path(__file__).with_name("watched_job.py")
PATHS: Final = ("/metrics/prometheus/", "/metrics/executors/prometheus/")
GROUP: Final = "flight-windows"
SPARK_SECONDS_MAX: Final = 180.0
"""Time limit of a start; on an idle machine the session starts and the first batch ends within 20 seconds."""


@contextmanager
def running_job(bootstrap: str, folder: Path) -> Iterator[int]:
    """Run the query, and yield the port of Spark's metrics."""
    port = free_port()
    command = [sys.executable, str(PROGRAM), bootstrap, "clicks", GROUP, str(port), str(folder)]
    with (folder / "spark.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, **QUICK_WORKERS, **quick_java(), "PYSPARK_PYTHON": sys.executable},
        )

    def query_is_reported() -> bool | None:
        assert process.poll() is None, (folder / "spark.log").read_text()[-3000:]
        with suppress(OSError):
            return "_spark_streaming_flight_windows_" in get(f"http://127.0.0.1:{port}{PATHS[0]}") or None
        return None

    try:
        wait_for("Spark does not report the query", query_is_reported, SPARK_SECONDS_MAX)
        yield port
    finally:
        stop(process)


def job_targets(port: int) -> list[Target]:
    """Return the targets of Spark's metrics."""
    return [Target("spark", f"127.0.0.1:{port}", {"namespace": NAMESPACE}, path) for path in PATHS]
