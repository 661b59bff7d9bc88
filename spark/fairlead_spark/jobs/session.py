"""Spark session with the settings of Fairlead's benchmarks, which the caller's settings override."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlead_spark.partition_by import pass_partition_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF: Final = {
    # A Unix socket between the JVM and Python has no delayed acknowledgements, and a task needs a third less time than
    # with TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Limits for the batches that Spark passes to Python in a write: 10,000 records of 100 bytes, or fewer longer
    # records.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
    "spark.sql.session.timeZone": "UTC",
}
"""Recommended settings, which also apply to `spark-submit`; docs/how-to/pipelines.md explains them."""
LOCAL_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings for a local session; all other sessions use spark-defaults.conf."""
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
WORKER_START: Final = str(Path(__file__).parents[1] / "worker_start")
"""Folder of the module that each Python process of the session imports at its start."""


def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process; start a session if there is none.

    Python processes of the session run this interpreter, unless `PYSPARK_PYTHON` names another interpreter, and have a
    `PYTHONPATH` that begins with `WORKER_START`, so that they start faster.

    `master` is Spark's master; None means the master of the surrounding spark-submit or, without spark-submit, all
    cores of this machine. `conf` overrides the recommended settings. The state of windows and sessions has one
    partition for each core instead of Spark's default of 200, since each partition costs a task in every batch.
    `partitionBy()` of writers reaches `format("fairlead-delta")`.
    """
    from pyspark.sql import SparkSession

    given = dict(conf or {})
    local = master.startswith("local") if master is not None else "PYSPARK_GATEWAY_PORT" not in os.environ
    # Workers must run the Python interpreter that has this package, not the first interpreter in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if WORKER_START not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in (WORKER_START, *path) if entry)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**CONF, **(LOCAL_CONF if local else {}), **given}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if SHUFFLE_PARTITIONS not in given:
        session.conf.set(SHUFFLE_PARTITIONS, str(session.sparkContext.defaultParallelism))
    pass_partition_by(session)
    return session
