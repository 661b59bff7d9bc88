"""Test of the pipeline of docs/how-to/pipelines.md, run by the command line as the page shows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.blocking import Admin, Consumer, Producer
from quick_java import quick_java
from spark_session import QUICK_WORKERS

PAGE = Path(__file__).parents[3] / "docs/how-to/pipelines.md"
PROGRAM = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^fairlead (job run \./\S+ .*)$", re.MULTILINE)
SECONDS_MAX = 300
FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))


@pytest.mark.timeout(2 * SECONDS_MAX)
def test_pipeline_of_the_page_runs_until_ctrl_c(bootstrap: str, tmp_path: Path) -> None:
    """The job copies records as they arrive, and prints its totals when it is interrupted."""
    [found] = PROGRAM.finditer(PAGE.read_text(encoding="utf-8"))
    [command] = COMMAND.findall(PAGE.read_text(encoding="utf-8"))
    (tmp_path / found["name"]).write_text(found["code"], encoding="utf-8")
    with Admin(bootstrap) as admin:
        admin.create_topic("orders", partitions=2)
        admin.create_topic("big-orders", partitions=1)
    with Producer(bootstrap) as producer:
        for price in (99, 100, 5000):
            producer.send("orders", json.dumps({"item": "lamp", "price": price}).encode())
        producer.send("orders", b"not an order")
        producer.flush()
    arguments = [
        *command.split(),
        "--master",
        "local[2]",
        "--conf",
        "spark.driver.memory=600m",
        "--output",
        "json",
    ]
    job = subprocess.Popen(
        [FAIRLEAD, *arguments],
        cwd=tmp_path,
        env={**os.environ, **QUICK_WORKERS, **quick_java(), "FAIRLEAD_BOOTSTRAP": bootstrap},
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("wb"),
        # Like a terminal, the test sends SIGINT to the process group, which contains only this process.
        start_new_session=True,
    )
    try:
        big: list[int] = []
        with Consumer(bootstrap) as consumer:
            consumer.assign(topic="big-orders")
            while len(big) < 2 and (batch := consumer.next_batch(timeout=f"{SECONDS_MAX}s")) is not None:
                big += [json.loads(value)["price"] for value in batch.to_arrow()["value"].to_pylist()]
        job.send_signal(signal.SIGINT)
        printed, _ = job.communicate(timeout=SECONDS_MAX)
    finally:
        job.kill()
        job.wait()

    told = (tmp_path / "stderr").read_text()
    assert job.returncode == 0, told
    assert sorted(big) == [100, 5000]
    summary = json.loads(printed)
    assert (summary["pipeline"], summary["records"], summary["dead_letters"]) == ("big_orders", 4, 1)
    assert "1 dead letters" in told
    assert (tmp_path / "big-orders-checkpoint" / "commits").is_dir()
