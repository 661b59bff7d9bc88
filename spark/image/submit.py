#!/opt/fairlead/bin/python -I
"""`spark-submit` without a shell: gets the Java command of the driver from Spark's launcher and executes it.

The program is installed in the Spark image as `bin/spark-submit`, which is the name of the program that PySpark calls.
The launcher reads spark-defaults.conf and computes the memory, the options and the class path of a driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

LAUNCHER = "org.apache.spark.launcher.Main"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
START = b"\0\n"
"""Separator between the messages of the launcher and the command, in which a null byte terminates each word."""


def launcher_command(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Return the command that runs the launcher, which prints the command of the driver."""
    jars = f"{variables['SPARK_HOME']}/jars/*"
    return [f"{variables['JAVA_HOME']}/bin/java", "-Xmx128m", "-cp", jars, LAUNCHER, SUBMIT, *words]


def command_in(printed: bytes) -> tuple[str, list[str]]:
    """Return the messages of the launcher, and the printed command; the command is empty if none was printed."""
    said, _, command = printed.partition(START)
    return said.decode(errors="replace"), [word.decode() for word in command.split(b"\0")[:-1]]


def main(words: list[str]) -> int:
    """Replace this process with the driver; return the exit code of the launcher if it prints no command."""
    # PYTHONHASHSEED makes string hashes equal in all processes of a job. The launcher requires SPARK_SCALA_VERSION.
    variables = {"SPARK_SCALA_VERSION": "2.13", **os.environ, "PYTHONHASHSEED": "0"}
    asked = launcher_command(words, variables)
    done = subprocess.run(asked, env=variables, stdout=subprocess.PIPE, check=False)
    said, command = command_in(done.stdout)
    sys.stderr.write(said)
    if command and not done.returncode:
        os.execve(command[0], command, variables)  # noqa: S606 (replaces this process with the driver)
    return done.returncode or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
