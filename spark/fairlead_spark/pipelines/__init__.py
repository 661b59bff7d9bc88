"""Pipelines: streaming queries with a name and options, each a module of this folder with `PIPELINE`.

`fairlead job run NAME` runs one; `find(NAME).start(spark, options, checkpoint=...)` does the same in a program. A
pipeline says what it reads and writes; trigger, checkpoint and name of the query are given when it is started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAMES: tuple[str, ...] = ("flight_windows", "logs", "mirror", "sessions", "topic_to_delta")
"""Every pipeline of this folder; the name of the module is the name of the pipeline."""
DEFAULT_BOOTSTRAP = "http://127.0.0.1:9520"


class PipelineError(ValueError):
    """A pipeline cannot be run as asked; the message says what to change."""


class PipelineNotFound(PipelineError):
    """No pipeline has this name."""


class PipelineOptionError(PipelineError):
    """An option is missing, unknown, or has a value that cannot be."""


@dataclass(frozen=True, slots=True)
class PipelineOption:
    """One option of a pipeline."""

    name: str
    help: str
    default: str | None = ""
    """The value where none is given; empty: off, or as Spark has it. None: the option is required."""

    @property
    def required(self) -> bool:
        """Whether a value must be given."""
        return self.default is None


BOOTSTRAP = PipelineOption(
    "bootstrap", "Brokers to start from, URLs with commas between them.", DEFAULT_BOOTSTRAP
)
"""Every pipeline has it; FAIRLEAD_BOOTSTRAP comes before the default."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A streaming query that can be run by name."""

    name: str
    summary: str
    """One sentence, for the list."""
    options: tuple[PipelineOption, ...]
    """Those of its own; `bootstrap` is added."""
    writer: Callable[[SparkSession, Mapping[str, str]], DataStreamWriter]
    """Builds the query from complete options, up to its writer; trigger, checkpoint and name are not its business."""
    check: Callable[[Mapping[str, str]], None] = lambda _options: None
    """Raises PipelineOptionError for values that cannot be, before Spark is started; no network."""
    reads: tuple[str, ...] = ()
    """Options that name topics to read, by comma. `fairlead job run` asks for them before it starts Spark."""

    @property
    def all_options(self) -> tuple[PipelineOption, ...]:
        """Return `bootstrap` and those of its own."""
        return (BOOTSTRAP, *self.options)

    def complete(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return every option with its value, the given ones and the defaults.

        Raises:
            PipelineOptionError: for an unknown option, a required one that is missing, or a value that cannot be.
        """
        known = {option.name: option for option in self.all_options}
        for name in given:
            if name not in known:
                message = f"pipeline {self.name} has no option {name!r}{_nearest(name, known)}"
                raise PipelineOptionError(message)
        values = {name: option.default for name, option in known.items() if option.default is not None}
        values["bootstrap"] = os.environ.get("FAIRLEAD_BOOTSTRAP") or DEFAULT_BOOTSTRAP
        values.update(given)
        for option in self.options:
            if option.required and not values.get(option.name):
                message = f"pipeline {self.name} needs the option {option.name}: {option.help}"
                raise PipelineOptionError(message)
        self.check(values)
        return values

    def start(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        *,
        checkpoint: str,
        once: bool = False,
        every: str = "1 second",
    ) -> StreamingQuery:
        """Start the query.

        `checkpoint` is the folder from which it goes on after a stop: one folder, one query. With `once` it works
        off what is there now and ends; without, it looks for records `every` so long (Spark's words: "5 seconds").

        Raises:
            PipelineOptionError: for an unknown option, a required one that is missing, or a value that cannot be.
        """
        writer = self.writer(spark, self.complete(options))
        writer = writer.queryName(self.name).option("checkpointLocation", checkpoint)
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
        return writer.start()


def find(name: str) -> Pipeline:
    """Return the pipeline of a name (hyphens and underscores are one), or of a file whose name ends in `.py`.

    Raises:
        PipelineNotFound: with the nearest name and the list of those there are.
        PipelineError: a file cannot be loaded, or holds no pipeline.
    """
    if name.endswith(".py"):
        return _of_file(Path(name))
    wanted = name.replace("-", "_")
    if wanted not in NAMES:
        message = f"no pipeline {name!r}{_nearest(wanted, NAMES)}"
        raise PipelineNotFound(message)
    pipeline = import_module(f"{__name__}.{wanted}").PIPELINE
    assert isinstance(pipeline, Pipeline), f"PIPELINE of {wanted} is none"
    return pipeline


def pipelines() -> list[Pipeline]:
    """Return every pipeline, by name."""
    return [find(name) for name in sorted(NAMES)]


def _of_file(path: Path) -> Pipeline:
    """Return what a file of the user's calls `PIPELINE`."""
    if not path.is_file():
        message = f"no file {path}"
        raise PipelineNotFound(message)
    name = f"fairlead_pipeline_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None, "a file of Python"
    assert spec.loader is not None, "a file of Python"
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        message = f"{path} does not load: {type(error).__name__}: {error}"
        raise PipelineError(message) from error
    pipeline = getattr(module, "PIPELINE", None)
    if not isinstance(pipeline, Pipeline):
        message = f"{path} holds no pipeline: it needs PIPELINE = fairlead_spark.pipelines.Pipeline(...)"
        raise PipelineError(message)
    with suppress(ImportError):
        from pyspark import cloudpickle

        # Workers cannot import the file: its functions travel whole.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return pipeline


def _nearest(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """Return the end of a sentence about an unknown name: the nearest one, and all of them."""
    close = get_close_matches(name.lower(), [each.lower() for each in known], n=1)
    meant = next((each for each in known if close and each.lower() == close[0]), None)
    return (f"; did you mean {meant!r}?" if meant else ";") + f" there are {', '.join(sorted(known))}"
