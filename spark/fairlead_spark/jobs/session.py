"""A Spark session with the settings under which Fairlead was measured. Whatever the caller sets stands before them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF: Final = {
    # Between the JVM and Python: a third less for each task than over TCP, and no waits of delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    # Batches that Spark hands to Python for a write: 10,000 records of 100 bytes, fewer of longer ones.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
    "spark.sql.session.timeZone": "UTC",
}
"""Recommended, for `spark-submit` as well; docs/how-to/pipelines.md says why."""
LOCAL_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""For a session on this machine alone; elsewhere the settings of the place (spark-defaults.conf) hold."""
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, started if there is none yet.

    `master`: as Spark has it; None: that of the surrounding spark-submit, else every core of this machine. `conf`
    comes before the recommended settings. Windows and sessions get one partition of state for each core: each costs
    a task in every batch, and Spark's default is 200.
    """
    from pyspark.sql import SparkSession

    given = dict(conf or {})
    local = master.startswith("local") if master is not None else "PYSPARK_GATEWAY_PORT" not in os.environ
    # Workers must run the Python in which this package is installed, and not the first one of PATH.
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
