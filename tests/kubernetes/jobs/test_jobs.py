"""A driver that submits to a real API server: its executors match the chart.

The driver runs outside any pod with the chart's settings and rights; nodes are fake, so executors are admitted,
scheduled and removed, and run nothing.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from chart_tools import JOBS_CHART, tool
from quick_java import quick_java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes

EXECUTORS = "spark-role=executor"
SUBMISSION = """
import sys
from fairlead_spark.jobs.session import spark_session

settings = {"spark.kubernetes.executor.podTemplateFile": sys.argv[2], "spark.ui.enabled": "false"}
# Executors on fake nodes never register, so the driver must not wait for them.
settings["spark.scheduler.maxRegisteredResourcesWaitingTime"] = "1s"
session = spark_session("fairlead flights", master="k8s://" + sys.argv[1], conf=settings)
print("submitted", flush=True)
sys.stdin.read()
session.stop()
"""


def chart(namespace: str) -> list[Manifest]:
    """Return the objects that the chart renders for a job with two executors."""
    settings = ("--set", "executors.count=2", "--set", "executors.memory=512m")
    words = ("template", "flights", JOBS_CHART, "--namespace", namespace, *settings)
    return [one for one in yaml.safe_load_all(tool("helm4", *words).stdout) if one]


@contextmanager
def driver(
    kubernetes: Kubernetes, namespace: str, settings: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[str]]:
    """Run a driver with the chart's settings and the token of its service account, until its input ends."""
    for name, text in settings.items():
        (folder / name).write_text(text)
    environment = kubernetes.environment(kubernetes.account_kubeconfig("flights", namespace))
    words = [sys.executable, "-c", SUBMISSION, kubernetes.server, str(folder / "executor.yaml")]
    log = folder / "driver.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*kubernetes.enter, *words],
            env={**environment, **quick_java(), "SPARK_CONF_DIR": str(folder)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None, "its output is a pipe"
            assert process.stdout.readline() == "submitted\n", log.read_text()
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(300)
def test_a_submission_makes_executors(kubernetes: Kubernetes, namespace: str, tmp_path: Path) -> None:
    """Executors of a driver are admitted by restricted Pod Security without a token, and end with the driver."""
    api, made = kubernetes.api, chart(namespace)
    api.apply(made, namespace)
    settings = next(one["data"] for one in made if one["kind"] == "ConfigMap")
    pod: Any = api.wait("pod/flights-0", namespace, lambda found: found and found["spec"].get("nodeName"))
    with driver(kubernetes, namespace, settings, tmp_path) as process:
        found = api.wait_list(
            "pods",
            namespace,
            lambda pods: len(pods) == 2 and all(each["spec"].get("nodeName") for each in pods),
            selector=EXECUTORS,
            seconds=120,
        )
        process.communicate("", timeout=120)
        api.wait_list("pods", namespace, lambda pods: not pods, selector=EXECUTORS, seconds=60)
    containers = [each["spec"]["containers"][0] for each in found]

    assert process.returncode == 0, (tmp_path / "driver.log").read_text()
    assert {each["spec"]["nodeName"] for each in found} == {pod["spec"]["nodeName"]}
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in found} == {pod["metadata"]["uid"]}
    assert [each["spec"]["automountServiceAccountToken"] for each in found] == [False, False]
    assert {each["image"] for each in containers} == {"localhost/fairlead-spark:dev"}
    assert {each["resources"]["limits"]["memory"] for each in containers} == {"1280Mi"}
    assert [each["args"] for each in containers] == [["executor"], ["executor"]]
    contract = {each["name"]: each.get("value") for each in containers[0]["env"]}
    assert {"SPARK_EXECUTOR_ID", "SPARK_EXECUTOR_POD_IP", "SPARK_JAVA_OPT_0"} <= contract.keys()
    assert (
        contract["SPARK_DRIVER_URL"]
        == f"spark://CoarseGrainedScheduler@flights-0.flights-driver.{namespace}.svc:7078"
    )
    assert {each["metadata"]["labels"]["app.kubernetes.io/component"] for each in found} == {"executor"}
