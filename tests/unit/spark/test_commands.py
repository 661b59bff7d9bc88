"""`fairlead job` without starting Spark: its lists, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli.main import run_command
from fairlead.cli.session import ExitCode
from fairlead_spark.jobs.requirements import java_release
from fairlead_spark.pipelines import NAMES, REPORTS
from refusals import missing

PAGE = Path(__file__).parents[3] / "docs/how-to/pipelines.md"
NOBODY = "http://127.0.0.1:1"
COMPARISON = ["compare-kafka", "-o", "topics=a", "-o", "kafka=k:9092"]


def test_list_has_every_pipeline_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON list contains each pipeline with its options, and marks required options."""
    code = run_command(["job", "list", "--output", "json"])

    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    required = {option["name"] for option in listed["mirror"]["options"] if option["required"]}
    assert code == ExitCode.OK
    assert sorted(listed) == sorted([*NAMES, *REPORTS])
    assert all(each["options"][0]["name"] == "bootstrap" for each in listed.values())
    assert required == {"topics", "target"}


def test_page_names_every_pipeline() -> None:
    """The how-to page names every pipeline."""
    named = {line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")}

    assert {*NAMES, *REPORTS} <= named


def test_info_names_versions_and_why_a_format_cannot_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of a format is null if the format is available, and otherwise states the reason."""
    monkeypatch.setattr("pyspark_fairlead.reason", "PySpark 4.1.0 is too old")

    code = run_command(["job", "info", "--output", "json"])

    told = json.loads(capsys.readouterr().out)
    assert code == ExitCode.OK
    assert told["formats"] == {"fairlead": "PySpark 4.1.0 is too old", "fairlead-delta": None}
    assert {"fairlead", "python", "pyspark", "java"} <= told["versions"].keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["flight_window"],
            "no pipeline 'flight_window'; did you mean 'flight_windows'? there are compare_kafka, flight_windows, ",
        ),
        (["mirror", "-o", "topics=a"], "pipeline mirror needs the option target: "),
        (
            ["sessions", "-o", "gab=1 hour"],
            "pipeline sessions has no option 'gab'; did you mean 'gap'? there are ",
        ),
        (["sessions", "-o", "gap"], "--option 'gap' is not of the form NAME=VALUE"),
        (["sessions", "--conf", "x"], "--conf 'x' is not of the form NAME=VALUE"),
        (["mirror", "-o", "topics= ,", "-o", f"target={NOBODY}"], "needs a name in the option topics"),
        (
            ["mirror", "-o", "topics=a", "-o", f"target={NOBODY},http://127.0.0.1:2"],
            f"would write into the topics that it reads: {NOBODY} is in bootstrap and in target",
        ),
        (["./nowhere.py"], "no file nowhere.py"),
        (["compare-kafca"], "did you mean 'compare_kafka'?"),
        (["from-kafka", "-o", "topics=a"], "pipeline from_kafka needs the option kafka: "),
        (["from-kafka", "-o", "topics=,", "-o", "kafka=k:9092"], "needs a name in the option topics"),
        (
            ["from-kafka", "-o", "topics=a", "-o", "kafka=k:9092", "-o", "kafkaConfig=/nowhere"],
            "option kafkaConfig='/nowhere'",
        ),
        ([*COMPARISON, "-o", "commit=yes"], "option commit='yes'"),
        ([*COMPARISON, "-o", "groups=billing"], "needs the option groups together with offsets"),
        ([*COMPARISON, "-o", "commit=true"], "needs the option groups together with offsets"),
        ([*COMPARISON, "--checkpoint", "here", "--every", "5 s"], "--checkpoint, --every: compare_kafka"),
    ],
)
def test_wrong_command_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line is refused with a suggestion before Spark is started."""
    code = run_command(["job", "run", *arguments, "--bootstrap", NOBODY])

    told = capsys.readouterr().err
    assert code == ExitCode.USAGE
    assert words in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no pipeline: it needs PIPELINE"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
    ],
)
def test_file_that_is_no_pipeline(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's file that does not define a pipeline is refused, and the error states the reason."""
    (tmp_path / "mine.py").write_text(text)

    code = run_command(["job", "run", str(tmp_path / "mine.py")])

    assert code == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_no_java(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without Java, the command fails with the required version and the searched path."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    code = run_command(["job", "run", "sessions", "--bootstrap", NOBODY])

    assert code == ExitCode.FAILED
    assert missing(capsys.readouterr().err, "Java", 17, "PATH") == []


def test_old_java(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A Java that is too old is refused, and the error contains its version."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    code = run_command(["job", "run", "sessions", "--bootstrap", NOBODY])

    assert code == ExitCode.FAILED
    assert f"{java} is 11.0.2" in capsys.readouterr().err


def test_old_pyspark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A PySpark that is too old is refused with its version and the oldest supported version."""
    metadata = tmp_path / "pyspark-4.1.2.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 4.1.2\n")
    monkeypatch.syspath_prepend(tmp_path)

    code = run_command(["job", "run", "sessions", "--bootstrap", NOBODY])

    assert code == ExitCode.FAILED
    assert missing(capsys.readouterr().err, "PySpark", "4.1.2", "4.2") == []


@pytest.mark.slow
def test_cluster_that_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """An unreachable cluster is reported with its exit code before Java is started."""
    code = run_command(["job", "run", "sessions", "--bootstrap", NOBODY])

    told = capsys.readouterr().err
    assert code == ExitCode.UNREACHABLE
    assert NOBODY in told
    assert "starting Spark" not in told


@pytest.mark.parametrize(
    ("version", "release"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25)]
)
def test_release_of_a_java(version: str, release: int) -> None:
    """Java versions are read in the old and the new notation."""
    assert java_release(version) == release
