"""Topics as tables in Spark's own programs: the SQL command line, the Scala shell and Spark Connect."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from etcd_cluster import free_ports
from fairlead.blocking import Producer
from quick_java import quick_java
from spark_session import CONF, QUICK_WORKERS
from waiting import pause_blocking

pytestmark = pytest.mark.scenario
RECORDS = 100
CONNECT = Path(__file__).with_name("connect_program.py")
SHELL_SECONDS = 300.0
"""Time limit of a program, which takes half a minute on a busy machine."""
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
TABLE = "CREATE TABLE log USING fairlead OPTIONS (bootstrap '{bootstrap}', subscribe '{topic}')"
INSERT = "INSERT INTO log (value) VALUES (CAST('further' AS BINARY))"
COUNT = "SELECT count(*) FROM log"
SCALA = """
import org.apache.spark.sql.streaming.Trigger
spark.sql("{table}")
spark.sql("{insert}")
println("rows=" + spark.table("log").count())
val further = spark.range(3).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")
val cluster = Map("bootstrap" -> "{bootstrap}")
further.write.format("fairlead").mode("append").options(cluster).option("topic", "{topic}").save()
val read = spark.read.format("fairlead").options(cluster).option("subscribe", "{topic}").load()
println("rows=" + read.count())
val stream = spark.readStream.option("startingOffsets", "earliest").table("log")
val sink = stream.writeStream.format("memory").queryName("seen").option("checkpointLocation", "seen")
sink.trigger(Trigger.AvailableNow()).start().awaitTermination()
println("rows=" + spark.table("seen").count())
:quit
"""


def command(name: str, *words: str) -> list[str]:
    """Return the command that runs a program of Spark with the settings of the tests."""
    settings = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    return [str(spark_home() / "bin" / name), "--master", "local[2]", *settings, *words]


def environment() -> dict[str, str]:
    """Return the environment of a program that starts Spark."""
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **QUICK_WORKERS, **quick_java(), "PYSPARK_PYTHON": sys.executable}


def run_program(folder: Path, *words: str, typed: str = "") -> str:
    """Run a program in a folder, which gets the metastore of Spark; return the output."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(),
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=SHELL_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run a server of Spark Connect with its metastore in a folder; yield the address."""
    port = next(free_ports())
    binding = ("--conf", "spark.connect.grpc.binding.address=127.0.0.1")
    words = command("spark-submit", *binding, "--conf", f"spark.connect.grpc.binding.port={port}")
    log = folder / "server.log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            [*words, "--class", SERVER, "spark-internal"],
            cwd=folder, env=environment(), stdout=said, stderr=said,
        ) as process,
    ):  # fmt: skip
        try:
            deadline = time.monotonic() + SHELL_SECONDS
            while not accepts(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                pause_blocking(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def accepts(port: int) -> bool:
    """Return whether a server accepts connections on a port."""
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=10):
        return True
    return False


def spark_home() -> Path:
    """Return the folder of the PySpark package, which contains Spark's programs."""
    found = find_spec("pyspark")
    assert found is not None, "the extra spark is installed"
    assert found.origin is not None, "the package has a file"
    return Path(found.origin).parent


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    """Return a topic with a hundred records."""
    with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number)
    return topic


def test_the_sql_command_line_creates_writes_and_keeps_a_table(
    bootstrap: str, filled: str, tmp_path: Path
) -> None:
    """A table that `spark-sql` creates for a topic is still in the metastore when `spark-sql` is started again."""
    table = TABLE.format(bootstrap=bootstrap, topic=filled)
    first = run_program(tmp_path, *command("spark-sql", "-S", "-e", f"{table}; {INSERT}; {COUNT}"))
    second = run_program(tmp_path, *command("spark-sql", "-S", "-e", f"{INSERT}; {COUNT}"))

    assert (first.split(), second.split()) == (["101"], ["102"])


def test_the_scala_shell_reads_writes_and_streams(bootstrap: str, filled: str, tmp_path: Path) -> None:
    """The Scala shell reads and writes a topic as a table and by the name of the format, and streams the table."""
    table = TABLE.format(bootstrap=bootstrap, topic=filled)
    script = SCALA.format(table=table, insert=INSERT, bootstrap=bootstrap, topic=filled)
    printed = run_program(tmp_path, *command("spark-shell"), typed=script)

    assert re.findall(r"rows=(\d+)", printed) == ["101", "104", "104"]


def test_a_client_of_spark_connect_registers_writes_and_streams(
    bootstrap: str, filled: str, tmp_path: Path
) -> None:
    """A client of Spark Connect registers a topic as a table of the server, and reads, writes and streams it."""
    with connect_server(tmp_path) as address:
        printed = run_program(tmp_path, sys.executable, str(CONNECT), address, bootstrap, filled)

    assert printed.split() == ["100", "101", "101"]
