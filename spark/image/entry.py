"""Entry point of the Spark image, started by tini: executes the command that Spark or a chart requests.

In cluster mode, Spark starts the containers of drivers and executors with fixed arguments and environment variables.
Spark's own image handles these arguments in a shell script, which the PySpark package does not contain. `executor`
starts an executor, and `driver` runs `spark-submit` in client mode inside the driver's pod. All other arguments are a
command that is executed unchanged.

Spark's published image is not used: its Python version differs from that of the broker's image, and its base image
comes from a registry.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
# Options of the executor program, each with the environment variable that Spark sets.
EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
HEAP = "SPARK_EXECUTOR_MEMORY"


class ContractError(ValueError):
    """An environment variable or argument that Spark always sets is missing; the message names the missing item."""


def command_of(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Return the command for the arguments and environment variables of a container. Raises `ContractError`."""
    match words:
        case ["executor", *_]:
            return executor_command(variables)
        case ["driver", *rest]:
            return driver_command(rest, variables)
        case []:
            message = "no arguments: give `executor`, `driver ...`, or a command such as `fairlead job list`"
            raise ContractError(message)
        case _:
            return list(words)


def executor_command(variables: Mapping[str, str]) -> list[str]:
    """Return the command that starts an executor."""
    absent = [name for name in (*EXECUTOR_OPTIONS.values(), HEAP) if not variables.get(name)]
    if absent:
        message = f"not set: {', '.join(absent)}; only Spark starts executors, and it sets these variables"
        raise ContractError(message)
    heap = variables[HEAP]
    named = [word for option, name in EXECUTOR_OPTIONS.items() for word in (option, variables[name])]
    return [
        java(variables),
        *java_options(variables),
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-cp",
        class_path(variables),
        BACKEND,
        *named,
    ]


def driver_command(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Return the command that starts a driver in cluster mode, with the program in the driver's pod."""
    address = variables.get("SPARK_DRIVER_BIND_ADDRESS")
    if not address:
        message = "SPARK_DRIVER_BIND_ADDRESS is not set; only Spark starts drivers, and it sets this variable"
        raise ContractError(message)
    return [
        f"{variables['SPARK_HOME']}/bin/spark-submit",
        "--conf",
        f"spark.driver.bindAddress={address}",
        "--conf",
        f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}",
        "--deploy-mode",
        "client",
        *words,
    ]


def java(variables: Mapping[str, str]) -> str:
    """Return the path of the Java executable."""
    return f"{variables['JAVA_HOME']}/bin/java"


def java_options(variables: Mapping[str, str]) -> list[str]:
    """Return the Java options in SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on, ordered by number."""
    numbered = [(int(found[1]), name) for name in variables if (found := JAVA_OPTION.fullmatch(name))]
    return [variables[name] for _, name in sorted(numbered)]


def class_path(variables: Mapping[str, str]) -> str:
    """Return the class path: configuration, then the user's paths, Spark's jars and the working directory."""
    home = variables["SPARK_HOME"]
    parts = [
        variables.get("SPARK_CONF_DIR") or f"{home}/conf",
        variables.get("HADOOP_CONF_DIR"),
        variables.get("SPARK_EXTRA_CLASSPATH"),
        variables.get("SPARK_CLASSPATH"),
        f"{home}/jars/*",
        variables.get("SPARK_DIST_CLASSPATH"),
        ".",
    ]
    return ":".join(part for part in parts if part)


def main(words: list[str]) -> int:
    """Replace this process with the command; return 2 with a message on stderr if there is no command."""
    try:
        command = command_of(words, os.environ)
    except ContractError as error:
        sys.stderr.write(f"entry: {error}\n")
        return 2
    try:
        os.execvp(command[0], command)  # noqa: S606 (replaces this process with the command)
    except OSError as error:
        sys.stderr.write(f"entry: {command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
