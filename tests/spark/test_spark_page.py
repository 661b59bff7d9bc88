"""Tests of the examples of the page docs/how-to/spark.md."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.blocking import Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs/how-to/spark.md"
EXAMPLE = re.compile(
    r"```(?P<language>python|sh|json)\n(?P<code>.*?)```(?:\n\n```text\n(?P<output>.*?)```)?", re.DOTALL
)
FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))


def answer_of(command: list[str], bootstrap: str) -> subprocess.CompletedProcess[str]:
    """Run a command until it succeeds, since Spark calls listeners some time after a batch is done."""
    deadline = time.monotonic() + 60
    while True:
        environment = {**os.environ, "FAIRLEAD_BOOTSTRAP": bootstrap}
        told = subprocess.run(
            command, env=environment, check=False, capture_output=True, text=True, timeout=60
        )
        if told.returncode == 0:
            return told
        assert time.monotonic() < deadline, told.stderr


def test_every_example_of_the_page_runs_and_prints_what_it_says(spark: SparkSession, bootstrap: str) -> None:
    """All examples of the page run in order in one namespace."""
    names: dict[str, Any] = {}
    examples = list(EXAMPLE.finditer(PAGE.read_text(encoding="utf-8")))
    assert len([example for example in examples if example["language"] == "python"]) >= 6
    for example in examples:
        code = example["code"].replace("http://127.0.0.1:9520", bootstrap)
        if example["language"] == "json":
            assert json.loads(code)
            continue
        printed = io.StringIO()
        if example["language"] == "sh":
            # The page says "From the next micro-batch on"; this is the next micro-batch.
            with Producer(bootstrap) as producer:
                producer.send("departures", b"40").result()
            names["run_once"]()
            told = answer_of(code.replace("fairlead", FAIRLEAD, 1).split(), bootstrap)
            names["progress"].close()
            spark.streams.removeListener(names["progress"])
            assert "departures" in told.stdout
            continue
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)

        assert printed.getvalue().replace("\n\n", "\n") == (example["output"] or ""), code
