"""Tests of the bundled pipelines, run by the command line as docs/how-to/pipelines.md shows.

Starting a JVM for each command takes long, so the commands are scenarios: the demo runs one of them,
test_pipeline_page.py runs the command for the pipeline of a file, and other tests run each pipeline in the shared
session.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlead import testing
from fairlead.blocking import Admin, Consumer, Producer
from fairlead.cli.main import run_command
from fairlead.cli.session import ExitCode
from fairlead_spark.pipelines import NAMES, REPORTS, PipelineOptionError, find, find_report
from fairlead_spark.pipelines.dead_letters import DEAD_LETTERS
from fairlead_spark.pipelines.mirror import refuse_itself
from fairlead_spark.pipelines.topics import MAX_OFFSETS, MIN_PARTITIONS, STARTING_OFFSETS
from quick_java import quick_java
from refusals import raises
from spark_session import QUICK_WORKERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs/how-to/pipelines.md"
SECTION = re.compile(r"^### `(?P<name>\w+)`\n(?P<text>.*?)(?=^##)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(
    r"^```sh\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL
)
OPTION = re.compile(r"^\| `(?P<name>\w+)` \| (?:`(?P<default>[^`]+)`)? *\|", re.MULTILINE)
SHARED = {option.name for option in (DEAD_LETTERS, STARTING_OFFSETS, MAX_OFFSETS, MIN_PARTITIONS)}
START = re.compile(r"^```sh start\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
NEED_KAFKA = {"from_kafka"}
"""Pipelines that test_from_kafka.py runs."""
OTHER = "http://127.0.0.1:9620"
SECONDS_MAX = 600
"""Time limit for a job, which takes half a minute on idle cores and much longer when twenty processes share the cores.
"""


def sections() -> dict[str, str]:
    """Return the section of the page for each pipeline."""
    return {found["name"]: found["text"] for found in SECTION.finditer(PAGE.read_text(encoding="utf-8"))}


def shell(code: str, bootstrap: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in a folder, as a user does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "FAIRLEAD_BOOTSTRAP": bootstrap, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        ["/bin/sh", "-ec", code],
        cwd=folder,
        env=os.environ | QUICK_WORKERS | quick_java() | settings,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[str, str]]:
    """Yield two clusters without topics."""
    with testing.running_cluster() as here, testing.running_cluster() as there:
        yield here, there


@pytest.fixture(scope="module")
def inputs_missing() -> Iterator[str]:
    """Yield a cluster with one topic, `there`."""
    with testing.running_cluster() as bootstrap, Admin(bootstrap) as admin:
        admin.create_topic("there", partitions=1)
        yield bootstrap


@contextmanager
def started(command: str) -> Iterator[str]:
    """Start the broker that the page starts, on a free port instead of the port of the page, and yield the broker."""
    code = command.strip().replace(OTHER.removeprefix("http://"), "127.0.0.1:0")
    program = [str(Path(sys.executable).with_name("fairlead")), *shlex.split(code)[1:], "--output", "json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as broker:
        try:
            assert broker.stdout is not None
            yield json.loads(broker.stdout.readline())["brokers"][0]["data"]
        finally:
            broker.terminate()


@pytest.mark.scenario
@pytest.mark.timeout(2 * SECONDS_MAX)
@pytest.mark.parametrize("name", sorted({*NAMES} - NEED_KAFKA))
def test_the_command_of_a_pipeline_gives_what_the_page_shows(
    clusters: tuple[str, str], tmp_path: Path, name: str
) -> None:
    """The page's commands send the records, run the job, and print the page's output, with lines in any order."""
    here, _ = clusters
    text = sections()[name]
    compared = 0
    with ExitStack() as stack:
        others = [stack.enter_context(started(each["code"])) for each in START.finditer(text)]
        assert bool(others) == (OTHER in text)
        for example in EXAMPLE.finditer(text):
            code = example["code"]
            for there in others:
                code = code.replace(OTHER, there)
            done = shell(code, here, tmp_path)

            assert done.returncode == 0, done.stderr
            if example["output"] is not None:
                compared += 1
                assert sorted(done.stdout.splitlines()) == sorted(example["output"].splitlines())
    assert compared == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("compare_kafka", ["topics=flights", "kafka=127.0.0.1:1"]),
        ("flight_windows", []),
        ("logs", []),
        ("mirror", ["topics=there,flights", f"target={OTHER}"]),
        ("sessions", ["input=flights"]),
        ("topic_to_delta", ["topics=there, flights", "path=/nowhere"]),
    ],
)
def test_a_missing_input_is_reported_before_spark_starts(
    inputs_missing: str, name: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A job whose topic is missing ends with exit code 3 and an error that names the topic and the next step."""
    missing = "logs" if name == "logs" else "flights"
    given = [word for option in options for word in ("--option", option)]
    code = run_command(["job", "run", name, *given, "--once", "--bootstrap", inputs_missing])

    assert code == ExitCode.NOT_FOUND
    assert capsys.readouterr().err == (
        f"error: topic {missing} is not in the cluster at {inputs_missing}. "
        "Check the name, or create the topic.\n"
    )


def test_every_pipeline_says_what_it_reads() -> None:
    """Each bundled pipeline names the options of its inputs, which are among its own options."""
    for name in (*NAMES, *REPORTS):
        pipeline = find_report(name) or find(name)

        assert bool(pipeline.reads) == (name not in NEED_KAFKA)
        assert set(pipeline.reads) <= {option.name for option in pipeline.options}


def test_a_mirror_knows_its_own_cluster_by_any_address(
    spark: SparkSession, clusters: tuple[str, str], topic: str, tmp_path: Path
) -> None:
    """A mirror of a cluster onto itself is refused, even with two spellings of the address, unless a prefix is set."""
    here, there = clusters
    with Producer(here) as producer:
        producer.send(topic, b"once").result()
    spelt = here.replace("127.0.0.1", "localhost")
    options = {"bootstrap": here, "target": spelt, "prefix": ""}
    with raises(PipelineOptionError, here, spelt):
        find("mirror").start(spark, options | {"topics": topic}, checkpoint=str(tmp_path), once=True)
    with Consumer(here) as consumer:
        consumer.assign(topic=topic)
        copied = sum(consumer.end_offsets().values())

    assert spelt != here
    assert copied == 1
    refuse_itself(options | {"prefix": "copy-"})
    refuse_itself(options | {"target": there})


def test_the_page_has_every_option() -> None:
    """The page lists each pipeline's own options with their defaults, and no other options."""
    told = {
        name: {option["name"]: option["default"] or "" for option in OPTION.finditer(text)}
        for name, text in sections().items()
    }

    assert told == {
        name: {
            option.name: option.default or ""
            for option in (find_report(name) or find(name)).options
            if option.name not in SHARED
        }
        for name in (*NAMES, *REPORTS)
    }
