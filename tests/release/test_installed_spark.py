"""Spark finds Fairlead when only the wheel with its extras is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from install_kit import BACKENDS, broker, install, install_hashed, new_environment, run
from quick_java import LIGHT_VARIABLES

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession

address, folder = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"ui.enabled": "false", "driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1", "local.dir": folder}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(f"spark.{name}", value)
spark = builder.getOrCreate()
orders = spark.read.format("fairlead").options(bootstrap=address, subscribe="orders").load()
orders.select("value").write.format("fairlead").options(bootstrap=address, topic="copies").mode("append").save()
spark.stop()
"""


@pytest.mark.scenario
def test_spark_reads_and_writes_by_installing_the_package(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is read and another written by Spark with the extra `spark`, without an import of the format."""
    for name, value in LIGHT_VARIABLES.items():
        monkeypatch.setenv(name, value)
    programs = new_environment(tmp_path)
    # PySpark is published only as source.
    install(programs, "--quiet", "--require-hashes", "-r", BACKENDS)
    install_hashed(programs, wheel, "broker,spark")
    # Each of Spark's Python processes would compile PySpark again from the archive that Spark puts first on their path.
    [archive] = programs.parent.glob("lib/*/site-packages/pyspark/python/lib/pyspark.zip")
    archive.unlink()

    with broker(programs, tmp_path) as address:
        for topic in ("orders", "copies"):
            made = run(programs / "fairlead", "topic", "create", topic, "--bootstrap", address, cwd=tmp_path)
            assert made.returncode == 0, made.stderr
        run(
            programs / "fairlead",
            "produce",
            "orders",
            "--bootstrap",
            address,
            cwd=tmp_path,
            typed="a book\na lamp\n",
        )
        done = run(programs / "python", "-c", PROGRAM, address, tmp_path, cwd=tmp_path)
        copies = run(
            programs / "fairlead",
            "consume",
            "copies",
            "--from-beginning",
            "--exit",
            "--bootstrap",
            address,
            cwd=tmp_path,
        )

    assert done.returncode == 0, done.stderr[:4000]
    assert sorted(copies.stdout.splitlines()) == ["a book", "a lamp"]
