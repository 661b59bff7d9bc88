"""Tests of the examples of the page docs/how-to/lake.md."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead_spark.pipelines import find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs/how-to/lake.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<output>.*?)```)?", re.DOTALL)
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
        code = example["code"].replace("http://127.0.0.1:9520", bootstrap).replace('"/lake/', f'"{tmp_path}/')
        code = code.replace('"flights")\n', f'"flights-{tmp_path.name}")\n').replace(
            'send("flights"', f'send("flights-{tmp_path.name}"'
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)

        assert printed.getvalue() == (example["output"] or ""), code


def test_the_command_of_the_page_has_options_that_there_are() -> None:
    """The pipeline accepts the options that the page gives it."""
    [command] = COMMAND.finditer(PAGE.read_text(encoding="utf-8"))
    name, *words = shlex.split(command["words"])
    given = dict(word.split("=", 1) for before, word in pairwise(words) if before == "--option")

    assert find(name).complete(given)["path"] == "/lake/flights"
