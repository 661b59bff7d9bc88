"""The entry point of the Spark image: the arguments and variables with which Spark calls it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from refusals import raises

IMAGE = Path(__file__).parents[4] / "spark/image"
PLACES = {"JAVA_HOME": "/java", "SPARK_HOME": "/spark"}
EXECUTOR = {
    **PLACES,
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "flights-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def program(name: str) -> Any:
    """Load a program of the image; the program is not in a package."""
    spec = spec_from_file_location(name, IMAGE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


entry, submit = program("entry"), program("submit")


def test_an_executor_gets_what_spark_said() -> None:
    """Each variable that Spark sets for executors becomes an option of the executor."""
    command = entry.command_of(["executor"], EXECUTOR)
    options = dict(zip(command[-14::2], command[-13::2], strict=True))

    assert command[0] == "/java/bin/java"
    assert command[1:-14] == [
        "-Xms512m", "-Xmx512m", "-cp", "/spark/conf:/spark/jars/*:.",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
    ]  # fmt: skip
    assert options == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "flights-exec-3",
    }


def test_options_of_java_keep_their_order() -> None:
    """Numbered options of Java keep their numeric order, and may contain spaces."""
    numbered = {f"SPARK_JAVA_OPT_{number}": f"-D{number}=a b" for number in (10, 2, 0)}
    command = entry.command_of(["executor"], {**EXECUTOR, **numbered})

    assert command[1:4] == ["-D0=a b", "-D2=a b", "-D10=a b"]


def test_settings_and_classes_of_the_user_come_before_those_of_spark() -> None:
    """Settings and classes of the user precede Spark's, so that the user's log4j2.properties is found."""
    more = {
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "HADOOP_CONF_DIR": "/hadoop",
        "SPARK_EXTRA_CLASSPATH": "/extra.jar",
        "SPARK_CLASSPATH": "/own.jar",
        "SPARK_DIST_CLASSPATH": "/dist/*",
    }

    assert entry.class_path({**PLACES, **more}) == (
        "/opt/spark/conf:/hadoop:/extra.jar:/own.jar:/spark/jars/*:/dist/*:."
    )


@pytest.mark.parametrize("name", sorted(set(EXECUTOR) - set(PLACES)))
def test_an_executor_that_spark_did_not_start_says_what_is_missing(name: str) -> None:
    """An executor without a variable that Spark sets fails with the variable's name, before Java starts."""
    variables = {key: value for key, value in EXECUTOR.items() if key != name}

    with raises(entry.ContractError, name):
        entry.command_of(["executor"], variables)


def test_a_driver_is_submitted_in_its_own_pod() -> None:
    """A driver in cluster mode is started by spark-submit with the given arguments."""
    words = ["driver", "--properties-file", "/conf/spark.properties", "local:///opt/spark/job.py", "mirror"]
    command = entry.command_of(words, {**PLACES, "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.8"})

    assert command == [
        "/spark/bin/spark-submit",
        "--conf", "spark.driver.bindAddress=10.0.0.8",
        "--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.8",
        "--deploy-mode", "client",
        *words[1:],
    ]  # fmt: skip
    with raises(entry.ContractError, "SPARK_DRIVER_BIND_ADDRESS"):
        entry.command_of(words, PLACES)


def test_anything_else_is_a_command() -> None:
    """A command other than driver and executor runs unchanged; an empty command is refused with the known commands."""
    said = run("entry.py", "printf", "%s", "ran")
    empty = run("entry.py")
    unknown = run("entry.py", "no-such-program")

    assert (said.returncode, said.stdout) == (0, "ran")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "fairlead job list" in empty.stderr
    assert (unknown.returncode, "no-such-program: No such file" in unknown.stderr) == (127, True)


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the image with the Python of the tests."""
    command = [sys.executable, "-I", str(IMAGE / name), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_the_launcher_prints_is_the_command() -> None:
    """The command consists of the launcher's null-terminated words after its separator line.

    Output of the launcher before its separator line is passed on.
    """
    said, command = submit.command_in(b"a warning\n\0\njava\0-cp\0/a b\0Main\0")

    assert said == "a warning\n"
    assert command == ["java", "-cp", "/a b", "Main"]
    assert submit.command_in(b"Error: no such class\n") == ("Error: no such class\n", [])


def test_the_launcher_is_asked_as_spark_class_asks_it() -> None:
    """The launcher is called as spark-class calls it, with a small heap and unchanged arguments."""
    assert submit.launcher_command(["--conf", "a=b c", "x.py"], PLACES) == [
        "/java/bin/java", "-Xmx128m", "-cp", "/spark/jars/*",
        "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit",
        "--conf", "a=b c", "x.py",
    ]  # fmt: skip
