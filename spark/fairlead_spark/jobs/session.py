"""Spark session with the settings of Fairlead's benchmarks. Settings of the caller override them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF: Final = {
    # A Unix socket between JVM and Python costs a third less for each task than TCP, without delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    # Limits of the batches that Spark passes to Python for a write: 10,000 records of 100 bytes, fewer if they are
    # longer.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
    "spark.sql.session.timeZone": "UTC",
}
"""Recommended settings, also for `spark-submit`; docs/how-to/pipelines.md has the reasons."""
LOCAL_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings for a local session; elsewhere, spark-defaults.conf applies."""
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process; start it if there is none.

    `master` is Spark's master; None uses that of the surrounding spark-submit, else all cores of this machine. `conf`
    overrides the recommended settings. Windows and sessions get one state partition for each core, since each partition
    costs a task in every batch, and Spark's default is 200.
    """
    from pyspark.sql import SparkSession

    given = dict(conf or {})
    local = master.startswith("local") if master is not None else "PYSPARK_GATEWAY_PORT" not in os.environ
    # Workers must run the Python in which this package is installed, not the first Python in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**CONF, **(LOCAL_CONF if local else {}), **given}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if SHUFFLE_PARTITIONS not in given:
        session.conf.set(SHUFFLE_PARTITIONS, str(session.sparkContext.defaultParallelism))
    return session
