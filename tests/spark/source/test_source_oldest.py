from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from checkout import ROOT
from fairlead.blocking import Admin, Producer
from quick_java import LIGHT_VARIABLES
from spark_session import QUICK_WORKERS

PYTHON = ROOT / ".venv" / "spark-oldest" / "bin" / "python"
PROGRAM = Path(__file__).with_name("oldest_program.py")


@pytest.mark.scenario
def test_the_oldest_pyspark_reads_and_writes(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Batches, streams, a table, a group, a pipeline and losses work in one session of the oldest supported PySpark."""
    assert PYTHON.exists(), f"{PYTHON} is missing: make setup installs it"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(100):
            producer.send(topic, b"%03d" % number, partition=number % 2)
        producer.flush()

    environment = {**os.environ, **QUICK_WORKERS, **LIGHT_VARIABLES}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [PYTHON, PROGRAM, bootstrap, topic, str(tmp_path)],
        env=environment,
        check=False, capture_output=True, text=True, timeout=500,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    hundred = [f"{number:03d}" for number in range(100)]
    assert told["version"].startswith("4.2.")
    assert told["count"] == told["table"] == told["mirrored"] == told["mirrored_to"] == 100
    assert told["triggers"] == 4
    assert f"offset 50 of {topic}-0 is below log start 58" in told["failure"]
    assert told["copied_to"] == 111
    assert told["values"] == [*hundred, "108", "109", "110"]
    assert told["mirror"] == hundred
