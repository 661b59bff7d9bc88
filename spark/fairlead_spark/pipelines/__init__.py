"""Pipelines: named streaming queries with options. Each module in this folder that defines `PIPELINE` is a pipeline.

`fairlead job run NAME` runs a pipeline; a program starts a pipeline with `find(NAME).start(spark, options,
checkpoint=...)`. A pipeline defines the input and the output of its query; the trigger, the checkpoint and the name of
the query are set when the query is started.

A report is a named query over stored records that ends with figures; its module defines `REPORT`. `fairlead job run`
runs reports too.
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

NAMES: tuple[str, ...] = ("flight_windows", "from_kafka", "logs", "mirror", "sessions", "topic_to_delta")
"""Names of the pipelines in this folder, which are also the names of their modules."""
REPORTS: tuple[str, ...] = ("compare_kafka",)
"""Names of the reports in this folder, which are also the names of their modules."""
DEFAULT_BOOTSTRAP = "http://127.0.0.1:9520"


class PipelineError(ValueError):
    """A pipeline cannot be run as requested; the message states the remedy."""


class PipelineNotFound(PipelineError):
    """No pipeline has this name."""


class PipelineOptionError(PipelineError):
    """An option is missing, unknown or invalid."""


@dataclass(frozen=True, slots=True)
class PipelineOption:
    """One option of a pipeline."""

    name: str
    help: str
    default: str | None = ""
    """Default value of the option. Empty means off or Spark's default; None means that the option is required."""

    @property
    def required(self) -> bool:
        """Whether the user must give a value."""
        return self.default is None


BOOTSTRAP = PipelineOption("bootstrap", "Bootstrap brokers, URLs separated by commas.", DEFAULT_BOOTSTRAP)
"""Option of every pipeline; the variable FAIRLEAD_BOOTSTRAP overrides the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedQuery:
    """Name and options of a query that can be run by name: a pipeline or a report."""

    name: str
    summary: str
    """Summary in one sentence, for `fairlead job list`."""
    options: tuple[PipelineOption, ...]
    """Options of this query without `bootstrap`, which every query has."""
    check: Callable[[Mapping[str, str]], None] = lambda _options: None
    """Function that raises `PipelineOptionError` for invalid values, without network access, before Spark is
    started."""
    reads: tuple[str, ...] = ()
    """Names of the options that list topics to read, separated by commas. `fairlead job run` checks that these topics
    exist before Spark is started."""

    @property
    def all_options(self) -> tuple[PipelineOption, ...]:
        """The option `bootstrap`, followed by the query's own options."""
        return (BOOTSTRAP, *self.options)

    def complete(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return all options, each with its given value or its default value.

        Raises:
            PipelineOptionError: for an unknown option, a missing required option, or an invalid value.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(NamedQuery):
    """A streaming query that can be run by name."""

    writer: Callable[[SparkSession, Mapping[str, str]], DataStreamWriter]
    """Function that builds the query from complete options, and returns its writer without a trigger, a checkpoint or a
    name."""

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

        `checkpoint` is the folder from which the query continues after a stop; each query needs its own folder. With
        `once`, the query processes all available records and then stops. Without `once`, the query looks for new
        records at the interval `every`, in Spark's notation ("5 seconds").

        Raises:
            PipelineOptionError: for an unknown option, a missing required option, or an invalid value.
        """
        writer = self.writer(spark, self.complete(options))
        writer = writer.queryName(self.name).option("checkpointLocation", checkpoint)
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
        return writer.start()


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of a report."""

    figures: Mapping[str, object]
    """Figures to print, by their names."""
    fault: str | None = None
    """Difference because of which the job fails, in one sentence; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(NamedQuery):
    """A query over stored records that ends by itself, without a checkpoint."""

    findings: Callable[[SparkSession, Mapping[str, str]], Findings]
    """Function that runs the query with complete options."""


def find(name: str) -> Pipeline:
    """Return the pipeline with the given name (hyphens count as underscores), or in the given `.py` file.

    Raises: PipelineNotFound: no pipeline has the name; the error contains the nearest name and all names.
    PipelineError: a file cannot be loaded, or has no pipeline.
    """
    if name.endswith(".py"):
        return _of_file(Path(name))
    wanted = _module_name(name)
    if wanted not in NAMES:
        message = f"no pipeline {name!r}{_nearest(wanted, NAMES + REPORTS)}"
        raise PipelineNotFound(message)
    pipeline = import_module(f"{__name__}.{wanted}").PIPELINE
    assert isinstance(pipeline, Pipeline), f"PIPELINE of {wanted} is not a Pipeline"
    return pipeline


def find_report(name: str) -> Report | None:
    """Return the report with the given name (hyphens count as underscores); None if no report has the name."""
    wanted = _module_name(name)
    if wanted not in REPORTS:
        return None
    report = import_module(f"{__name__}.{wanted}").REPORT
    assert isinstance(report, Report), f"REPORT of {wanted} is not a Report"
    return report


def pipelines() -> list[Pipeline]:
    """Return all pipelines, ordered by name."""
    return [find(name) for name in sorted(NAMES)]


def reports() -> list[Report]:
    """Return all reports, ordered by name."""
    return [report for name in sorted(REPORTS) if (report := find_report(name)) is not None]


def _module_name(name: str) -> str:
    return name.replace("-", "_")


def _of_file(path: Path) -> Pipeline:
    """Return `PIPELINE` of a user's file."""
    if not path.is_file():
        message = f"no file {path}"
        raise PipelineNotFound(message)
    name = f"fairlead_pipeline_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None, "a Python file"
    assert spec.loader is not None, "a Python file"
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        message = f"{path} cannot be loaded: {type(error).__name__}: {error}"
        raise PipelineError(message) from error
    pipeline = getattr(module, "PIPELINE", None)
    if not isinstance(pipeline, Pipeline):
        message = f"{path} has no pipeline: it needs PIPELINE = fairlead_spark.pipelines.Pipeline(...)"
        raise PipelineError(message)
    with suppress(ImportError):
        from pyspark import cloudpickle

        # Spark workers cannot import the user's file, so its functions are pickled by value.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return pipeline


def _nearest(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """Return the last part of a message about an unknown name: the nearest known name, and all known names."""
    close = get_close_matches(name.lower(), [each.lower() for each in known], n=1)
    meant = next((each for each in known if close and each.lower() == close[0]), None)
    return (f"; did you mean {meant!r}?" if meant else ";") + f" there are {', '.join(sorted(known))}"
