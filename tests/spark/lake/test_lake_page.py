"""Tests of the examples of the page docs/how-to/lake.md."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

from fairlead.blocking import Admin, Producer
from fairlead_spark.pipelines import find
from waiting import pause_blocking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).parents[3] / "docs/how-to/lake.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<output>.*?)```)?", re.DOTALL)
SECTION = re.compile(r"## A table from a changelog topic\n(.*?)\n## ", re.DOTALL)
COMMAND = re.compile(r"```sh\nfairlead job run (?P<words>.*?)```", re.DOTALL)


def test_every_example_of_the_page_runs_and_prints_what_it_says(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """All examples of the page run in order in one namespace."""
    names: dict[str, object] = {}
    examples = list(EXAMPLE.finditer(PAGE.read_text(encoding="utf-8")))
    assert spark
    assert len(examples) >= 6
    for example in examples:
        assert _printed(example["code"], names, bootstrap, tmp_path) == (example["output"] or "")


def test_a_repeated_micro_batch_of_a_changelog_may_be_smaller_and_is_merged_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """A micro-batch that fails after its merge, and has fewer records when Spark repeats it, leaves the right rows.

    The program is that of the page. A cleaning removes a record that the next micro-batch replaces.
    """
    topic, table = f"accounts-{tmp_path.name}", f"{tmp_path}/accounts"
    names: dict[str, Any] = {"spark": spark, "F": functions, "Producer": Producer, "DeltaTable": DeltaTable}
    merged: list[tuple[int, int]] = []

    def rows() -> dict[str, str]:
        """Return the balances in the table by key."""
        found = DeltaTable(table).to_pyarrow_table().to_pylist()
        assert len({row["key"] for row in found}) == len(found)
        return {row["key"]: row["balance"] for row in found}

    def merge_and_fail_once(frame: DataFrame, batch: int) -> None:
        """Merge a micro-batch, and fail after the first one."""
        merged.append((batch, frame.count()))
        merge(frame, batch)
        if len(merged) == 1:
            raise ArithmeticError

    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic(topic, config={"cleanup.policy": "compact"})
        [section] = SECTION.findall(PAGE.read_text(encoding="utf-8"))
        for example in EXAMPLE.finditer(section):
            _printed(example["code"], names, bootstrap, tmp_path)
        merge, names["merge"] = names["merge"], merge_and_fail_once
        before = rows()
        for key, value in [(b"cat", b"1"), (b"dan", b"2"), (b"ben", None)]:
            producer.send(topic, value, key)
        producer.flush()
        with pytest.raises(StreamingQueryException):
            names["merge_new"]()
        failed = rows()
        producer.send(topic, b"3", b"dan").result()
        admin.clean_partition(topic, 0)
        while admin.describe_cleaning(topic, 0).replicas[0].requested_offset is not None:
            pause_blocking(0.05)
        names["merge_new"]()

    assert before == {"ben": "5"}
    assert failed == {"cat": "1", "dan": "2"}
    assert merged == [(2, 3), (2, 2), (3, 1)]
    assert rows() == {"cat": "1", "dan": "3"}


def _printed(code: str, names: dict[str, Any], bootstrap: str, folder: Path) -> str:
    """Run an example with topics and tables that no other test uses, and return what it prints."""
    code = code.replace("http://127.0.0.1:9520", bootstrap).replace('"/lake/', f'"{folder}/')
    code = code.replace('"flights")\n', f'"flights-{folder.name}")\n')
    code = code.replace('send("flights"', f'send("flights-{folder.name}"')
    code = code.replace('"accounts"', f'"accounts-{folder.name}"')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), names)
    return printed.getvalue()


def test_the_command_of_the_page_has_options_that_there_are() -> None:
    """The pipeline accepts the options that the page gives it."""
    [command] = COMMAND.finditer(PAGE.read_text(encoding="utf-8"))
    name, *words = shlex.split(command["words"])
    given = dict(word.split("=", 1) for before, word in pairwise(words) if before == "--option")

    assert find(name).complete(given)["path"] == "/lake/flights"
