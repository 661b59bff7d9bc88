#!/opt/fairlead/bin/python -I
"""`spark-submit` without a shell: gets the Java command from Spark's launcher and executes it.

Installed in the Spark image as `bin/spark-submit`, the name that PySpark calls. The launcher reads spark-defaults.conf
and computes memory, options and class path of a driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

LAUNCHER = "org.apache.spark.launcher.Main"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
START = b"\0\n"
"""Separator between the launcher's messages and the command, whose words are each terminated by a null byte."""


def launcher_command(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Return the launcher's command, which prints the driver's command."""
    jars = f"{variables['SPARK_HOME']}/jars/*"
    return [f"{variables['JAVA_HOME']}/bin/java", "-Xmx128m", "-cp", jars, LAUNCHER, SUBMIT, *words]


def command_in(printed: bytes) -> tuple[str, list[str]]:
    """Return the launcher's messages, and the printed command; empty if there is no command."""
    said, _, command = printed.partition(START)
    return said.decode(errors="replace"), [word.decode() for word in command.split(b"\0")[:-1]]


def main(words: list[str]) -> int:
    """Replace this process by the driver; return the launcher's exit code if it prints no command."""
    # PYTHONHASHSEED makes hashes of strings equal in all processes of a job; the launcher requires the Scala version.
    variables = {"SPARK_SCALA_VERSION": "2.13", **os.environ, "PYTHONHASHSEED": "0"}
    asked = launcher_command(words, variables)
    done = subprocess.run(asked, env=variables, stdout=subprocess.PIPE, check=False)
    said, command = command_in(done.stdout)
    sys.stderr.write(said)
    if command and not done.returncode:
        os.execve(command[0], command, variables)  # noqa: S606 (to become it is the point)
    return done.returncode or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
