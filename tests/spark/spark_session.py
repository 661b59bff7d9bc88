"""The Spark session and the clusters of the tests in this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from fairlead_spark.jobs.session import WORKER_START
from quick_java import quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_WORKERS: Final = {
    "PYTHONPATH": WORKER_START,
    "PYTHONPYCACHEPREFIX": str(Path(__file__).parents[2] / "build" / "bytecode"),
}
"""Settings that let Spark's many Python processes find bytecode, because on a loaded machine they would otherwise start
too late.
"""
CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # A short timeout, so that a failure that a test provokes does not take a minute.
    "spark.sql.streaming.pollingDelay": "10ms",
}


@contextmanager
def running_session(folder: str) -> Iterator[SparkSession]:
    """Run a session with two cores in this process, with its files in a folder."""
    pyspark_sql = pytest.importorskip("pyspark.sql", reason="these tests need the extra spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.update(QUICK_WORKERS)
    os.environ.update(quick_java())
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    builder = pyspark_sql.SparkSession.builder.master("local[2]").appName("fairlead tests")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", f"{folder}/local")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
