"""The commands `fairlead job list`, `run` and `info`, which run pipelines.

The commands are entry points of the group `fairlead.commands`. PySpark is imported only when a job runs, so that the
other commands can report missing software.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fairlead.blocking import Admin
from fairlead.cli.options import Output, OutputFormat
from fairlead.cli.printing import print_document, print_pairs, print_rows
from fairlead.cli.session import ExitCode, fail_usage
from fairlead.errors import ClusterError, FairleadError, SettingError, UnreachableError
from fairlead_spark.jobs import Job, JobError, JobFailed
from fairlead_spark.jobs.requirements import check_requirements, format_reasons, versions
from fairlead_spark.pipelines import (
    Findings,
    NamedQuery,
    Pipeline,
    PipelineError,
    PipelineOption,
    Report,
    find,
    find_report,
    pipelines,
    reports,
)
from fairlead_spark.pipelines.kafka_cluster import KafkaUnavailable
from fairlead_spark.pipelines.topics import InputNotFound, require_inputs

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

    from fairlead_spark.jobs.running import JobRun, JobSummary

RETRY_TIMEOUT = "5s"  # a user is waiting: an unreachable cluster must fail quickly, before Java is started
EVERY = "1 second"

PipelineName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of a pipeline in `fairlead job list`, or path of a .py file.",
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the pipeline; may be repeated."),
]
JobBootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", metavar="URL,URL", help="Addresses of one or more brokers."),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER",
        help="Where Spark runs: local[2], k8s://..., spark://...",
        show_default="the master of spark-submit, else all cores of this machine",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", "-c", metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder from which the job continues after a stop; every job needs its own.",
        show_default="a temporary one: every run starts from the beginning",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process all available records, and stop.")]
Seconds = Annotated[
    float | None, typer.Option(min=0, help="Stop after this number of seconds.", show_default="at Ctrl-C")
]
Every = Annotated[str, typer.Option(metavar="INTERVAL", help="Interval between two batches.")]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Consumer group to which progress is published, for `fairlead group lag`; empty: none.",
        show_default="job-NAME",
    ),
]


def job_list(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this pipeline, with its options.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the pipelines and reports that can be run, or the options of one of them.

    Example: fairlead job list

    Example: fairlead job list flight_windows
    """
    found = [*pipelines(), *reports()] if name is None else [_found(name)]
    if output is not OutputFormat.TABLE:
        print_document([_described(each) for each in found], output)
    elif name is None:
        print_rows(["PIPELINE", "SUMMARY"], [(each.name, each.summary) for each in found])
    else:
        rows = [(option.name, _default(option), option.help) for option in found[0].all_options]
        print_rows(["OPTION", "DEFAULT", "MEANING"], rows)


def job_run(
    name: PipelineName,
    option: Options = None,
    bootstrap: JobBootstrap = None,
    master: Master = None,
    conf: Conf = None,
    checkpoint: Checkpoint = None,
    once: Once = False,
    seconds: Seconds = None,
    every: Every = EVERY,
    group: Group = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run a pipeline until all available records are processed (--once), the time is up (--seconds), or Ctrl-C.

    Prints a line on stderr for each batch. On Ctrl-C, the batch in progress is completed; a second Ctrl-C cancels the
    batch. With --checkpoint, the next run continues where the previous run ended.

    A report, such as compare_kafka, reads all records once and prints its figures; it takes none of --checkpoint,
    --seconds, --every and --group. The command fails with exit code 1 if the report finds a fault.

    Example: fairlead job run flight_windows --option input=flights --once

    Example: fairlead job run mirror -o topics=orders -o target=http://other:9520 --checkpoint /var/lib/jobs/orders
    """
    query = _found(name)
    given = _pairs(option, "--option")
    if bootstrap is not None:
        given["bootstrap"] = bootstrap
    settings = _pairs(conf, "--conf")
    with _exit_codes():
        if isinstance(query, Report):
            _refuse_options_of_streams(query, checkpoint, seconds, every, group)
            _prepare(query, given)
            _print_findings(query, _run_report(query, given, master, settings), output)
            return
        _prepare(query, given)
        job = Job(
            pipeline=query,
            options=given,
            checkpoint=checkpoint,
            once=once,
            seconds=seconds,
            every=every,
            group=group,
        )
        summary = _run(job, master, settings)
    if output is OutputFormat.TABLE:
        print_pairs(summary.to_dict())
    else:
        print_document(summary.to_dict(), output)


def job_info(output: Output = OutputFormat.TABLE) -> None:
    """Print the versions of the packages that jobs need, and the reason if a Spark format is not available.

    Example: fairlead job info
    """
    found, reasons = versions(), format_reasons()
    if output is OutputFormat.TABLE:
        formats = {f"format {name}": reason or "ready" for name, reason in reasons.items()}
        print_pairs({**found, **formats})
    else:
        print_document({"versions": found, "formats": reasons}, output)


def _refuse_options_of_streams(
    report: Report, checkpoint: str | None, seconds: float | None, every: str, group: str | None
) -> None:
    given = {
        "--checkpoint": checkpoint is not None,
        "--seconds": seconds is not None,
        "--every": every != EVERY,
        "--group": group is not None,
    }
    refused = [name for name, is_given in given.items() if is_given]
    if refused:
        fail_usage(f"{', '.join(refused)}: {report.name} is a report, which reads all records once")


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Exit with the code and the message of an error of a job."""
    try:
        yield
    except InputNotFound as error:
        _fail(str(error), ExitCode.NOT_FOUND)
    except KafkaUnavailable as error:
        _fail(str(error), ExitCode.UNREACHABLE)
    except PipelineError as error:
        fail_usage(str(error))
    except JobError as error:
        _fail(str(error), ExitCode.FAILED)
    except FairleadError as error:
        _fail(str(error), _exit_code(error))


def _prepare(query: Pipeline | Report, given: Mapping[str, str]) -> None:
    """Check the machine, the options and the inputs before Java is started."""
    check_requirements()
    options = query.complete(given)
    _check_cluster(options["bootstrap"])
    require_inputs(query, options)


def _run(job: Job, master: str | None, conf: Mapping[str, str]) -> JobSummary:
    from fairlead_spark.jobs.running import JobRun

    with _spark(job.name, master, conf) as spark:
        run = JobRun(spark, job, _print_line)
        with _stopped_by_signals(run):
            return run.run()


def _run_report(
    report: Report, given: Mapping[str, str], master: str | None, conf: Mapping[str, str]
) -> Findings:
    from fairlead_spark.jobs.running import run_report

    with _spark(report.name, master, conf) as spark:
        return run_report(spark, report, given)


def _print_findings(report: Report, findings: Findings, output: OutputFormat) -> None:
    """Print the figures; exit with a code for a failure if there is a fault."""
    document = {"report": report.name, **findings.figures}
    if output is OutputFormat.TABLE:
        print_pairs(document)
    else:
        print_document(document, output)
    if findings.fault is not None:
        _fail(f"{report.name}: {findings.fault}", ExitCode.FAILED)


@contextmanager
def _spark(name: str, master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a session of Spark. Raises `JobFailed` if the Spark process ends."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from fairlead_spark.jobs.session import spark_session

    _print_line(f"starting Spark for {name}")
    try:
        with spark_session(f"fairlead {name}", master=master, conf=conf) as spark:
            yield spark
    except (Py4JError, ConnectionError) as error:
        # A signal to the whole process group also stops the JVM, which is safe because of the checkpoint.
        message = f"the Spark process has ended or does not answer: {error!r}"
        raise JobFailed(message) from error


@contextmanager
def _stopped_by_signals(run: JobRun) -> Iterator[None]:
    """Stop the job after its batch on SIGINT and SIGTERM; a second signal stops the program."""
    kinds = (signal.SIGINT, signal.SIGTERM)

    def stop(_number: int, _frame: FrameType | None) -> None:
        _print_line("stopping after this batch; a second signal cancels it")
        for kind in kinds:
            signal.signal(kind, signal.SIG_DFL)
        run.stop()

    before = {kind: signal.signal(kind, stop) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _check_cluster(bootstrap: str) -> None:
    """Check that the cluster is reachable before Java is started. Raises `FairleadError`."""
    with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
        admin.cluster()


def _found(name: str) -> Pipeline | Report:
    try:
        return find_report(name) or find(name)
    except PipelineError as error:
        fail_usage(str(error))


def _pairs(given: list[str] | None, flag: str) -> dict[str, str]:
    """Return the pairs given as NAME=VALUE; exit with the usage code if an argument has a different form."""
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            fail_usage(f"{flag} {text!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs


def _described(query: NamedQuery) -> dict[str, object]:
    options = [
        {
            "name": option.name,
            "required": option.required,
            "default": option.default or None,
            "help": option.help,
        }
        for option in query.all_options
    ]
    return {"name": query.name, "summary": query.summary, "options": options}


def _default(option: PipelineOption) -> str | None:
    return "required" if option.required else option.default or None


def _exit_code(error: FairleadError) -> ExitCode:
    match error:
        case UnreachableError():
            return ExitCode.UNREACHABLE
        case ClusterError():
            return ExitCode.REFUSED
        case SettingError():
            return ExitCode.USAGE
        case _:
            return ExitCode.FAILED


def _print_line(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _fail(message: str, code: ExitCode) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
