#!/opt/fairlead/bin/python -I
"""`spark-submit` without scripts for a shell: asks Spark's launcher for the command of Java and becomes it.

Installed in the Spark image as `bin/spark-submit`, which PySpark calls by that name. The launcher reads
spark-defaults.conf and knows memory, options and class path of a driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

LAUNCHER = "org.apache.spark.launcher.Main"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
START = b"\0\n"
"""What stands between messages of the launcher and the command, whose words end with a null each."""


def launcher_command(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Return the command that prints the command."""
    jars = f"{variables['SPARK_HOME']}/jars/*"
    return [f"{variables['JAVA_HOME']}/bin/java", "-Xmx128m", "-cp", jars, LAUNCHER, SUBMIT, *words]


def command_in(printed: bytes) -> tuple[str, list[str]]:
    """Return what the launcher said, and the command that it printed; empty where there is none."""
    said, _, command = printed.partition(START)
    return said.decode(errors="replace"), [word.decode() for word in command.split(b"\0")[:-1]]


def main(words: list[str]) -> int:
    """Become the driver; the launcher's code where it gives no command."""
    # Hashes of strings are the same in all processes of a job; the launcher asks for Scala's release.
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
