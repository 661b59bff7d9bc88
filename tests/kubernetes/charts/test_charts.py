"""The charts without a cluster: lint, their own suites, refused values, and generated files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chart_tools import CHARTS, CI_VALUES, CLUSTER_CHART, JOBS_CHART, OPERATOR_CHART, ROOT, render, tool


@pytest.mark.parametrize("helm", ["helm4", "helm3"])
def test_lint(helm: str) -> None:
    """The charts pass the strict lint of Helm 4 and Helm 3 with every values file of CI."""
    values = [
        words
        for path in CI_VALUES
        for words in ("--values", str(path))
        if path.parent.parent == OPERATOR_CHART
    ]
    answers = [tool(helm, "lint", "--strict", chart).stdout for chart in CHARTS]
    answers.append(tool(helm, "lint", "--strict", OPERATOR_CHART, *values[:2]).stdout)

    assert ["0 chart(s) failed" in answer for answer in answers] == [True] * 4


def test_their_own_suites() -> None:
    """The charts' own test suites pass."""
    answer = tool("helm-unittest", *CHARTS).stdout

    assert re.search(r"Test Suites:\s+[1-9]\d* passed", answer)


def test_tables_of_values_are_current() -> None:
    """The table of values in each chart's README is generated from the chart's values."""
    command = [sys.executable, str(ROOT / ".ci/manifests.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_chart_without_definitions_is_refused(tmp_path: Path) -> None:
    """A chart without definitions installs no operator and names the command that generates them."""
    chart = tmp_path / "chart"
    shutil.copytree(OPERATOR_CHART, chart, ignore=shutil.ignore_patterns("definitions"))
    refused = tool("helm4", "template", "a", chart, check=False)
    left_out = tool("helm4", "template", "a", chart, "--set", "crds.enabled=false")

    assert refused.returncode == 1
    assert "make manifests" in refused.stderr
    assert "kind: Deployment" in left_out.stdout


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_both_helms_render_the_same(chart: Path) -> None:
    """Helm 4 and Helm 3 render the same objects when every value is set."""
    path = chart / "ci/everything-values.yaml"
    four, three = (
        sorted(map(str, filter(None, yaml.safe_load_all(render(chart, "--values", path, helm=helm)))))
        for helm in ("helm4", "helm3")
    )

    assert four
    assert four == three


@pytest.mark.parametrize("scope", ["own", "list"])
def test_no_right_beyond_namespaces(scope: str) -> None:
    """An operator for its own or listed namespaces has a RoleBinding in each of them and no ClusterRoleBinding."""
    settings = ["--set", f"watch.scope={scope}"]
    if scope == "list":
        settings += ["--set", "watch.namespaces={one,two}"]
    objects = [one for one in yaml.safe_load_all(render(OPERATOR_CHART, *settings)) if one]
    kinds = {one["kind"] for one in objects}
    bindings = [one["metadata"]["namespace"] for one in objects if one["kind"] == "RoleBinding"]

    assert "ClusterRoleBinding" not in kinds
    assert ("ClusterRole" in kinds) is (scope == "list")
    assert sorted(bindings) == (["fairlead", "fairlead"] if scope == "own" else ["fairlead", "one", "two"])


def test_no_right_that_is_never_used() -> None:
    """An operator has only the rights that it uses (rule K7).

    It updates only its Lease and finalizers, and only patches statuses.
    """
    granted, usual = (
        {
            (resource, verb)
            for role in yaml.safe_load_all(render(OPERATOR_CHART, *settings))
            if role and role["kind"] == "Role"
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for settings in (("--set", "certManager.enabled=true"), ())
    )

    assert {resource for resource, _ in granted - usual} == {"certificates"}
    # The operator never deletes Secrets. The admission plugin OwnerReferencesPermissionEnforcement requires the right
    # to delete when the operator changes the owner of an existing object, such as one of a retained Cluster.
    assert {resource for resource, verb in granted if verb == "delete"} == {
        "certificates",
        "deployments",
        "httproutes",
        "ingresses",
        "networkpolicies",
        "persistentvolumeclaims",
        "poddisruptionbudgets",
        "podmonitors",
        "pods",
        "secrets",
        "services",
        "statefulsets",
        "tlsroutes",
        "users",
    }
    for resource in ("certificates", "secrets"):
        assert {verb for each, verb in granted if each == resource} == {"create", "delete", "get", "patch"}
    assert {verb for resource, verb in granted if resource == "serviceaccounts/token"} == {"create"}
    assert {each for each in granted if each[1] == "update"} == {
        ("clusters/finalizers", "update"),
        ("leases", "update"),
    }
    assert {verb for resource, verb in granted if resource.endswith("/status")} == {"patch"}
    assert {verb for resource, verb in granted if resource == "leases"} == {"create", "get", "update"}
    assert {verb for _, verb in granted} == {"create", "delete", "get", "list", "patch", "update", "watch"}


@pytest.mark.parametrize("helm", ["helm4", "helm3"])
def test_misspelt_values_are_refused(helm: str) -> None:
    """A misspelt value is refused and named, at the top level, in a group, and in a Topic's configuration."""
    refusals = {
        ("replica=2", OPERATOR_CHART): "replica",
        ("watch.scop=all", OPERATOR_CHART): "scop",
        ("cluster.claimPolicys.whenDeleted=Delete", CLUSTER_CHART): "claimPolicys",
        ("topics.orders.partition=6", CLUSTER_CHART): "partition",
        ("topics.orders.config.retention\\.ms=5", CLUSTER_CHART): "retention.ms",
        ("executors.counts=2", JOBS_CHART): "counts",
    }
    answers = {
        setting: tool(helm, "template", "a", chart, "--set", setting, check=False)
        for setting, chart in refusals
    }

    assert [one.returncode for one in answers.values()] == [1] * len(refusals)
    for (setting, _), word in refusals.items():
        assert word in answers[setting].stderr


def test_names_that_read_as_something_else_are_text() -> None:
    """Names of releases, namespaces, topics and jobs stay text if YAML reads them as numbers, booleans or null."""
    release = ("template", "42", OPERATOR_CHART, "--namespace", "7", "--kube-version", "1.36.0")
    named = ("--set-string", "fullnameOverride=1234", "--set-string", "priorityClassName=1")
    watched = ("--set", "watch.scope=list", "--set-json", 'watch.namespaces=["true", "1e3"]')
    operator = tool("helm4", *release, *named, *watched).stdout
    cluster = tool(
        "helm4", "template", "on", CLUSTER_CHART, "--namespace", "7", "--set-json", 'topics={"2026": {}}'
    ).stdout
    job = tool("helm4", "template", "null", JOBS_CHART, "--namespace", "8", "--set-string", "group=9").stdout
    texts = [
        text
        for one in yaml.safe_load_all(f"{operator}---\n{cluster}---\n{job}")
        if one
        for text in names_in(one)
    ]

    assert {text for text in texts if not isinstance(text, str)} == set()
    assert {"42", "7", "1234", "1", "true", "1e3", "on", "2026", "null", "8"} <= set(texts)


def names_in(value: object) -> list[object]:
    """Return all names, namespaces and labels of an object, except the names of fields in a schema."""
    if isinstance(value, list):
        return [name for each in value for name in names_in(each)]
    if not isinstance(value, dict) or "openAPIV3Schema" in value:
        return []
    own = [
        value[name]
        for name in ("name", "namespace", "serviceAccountName", "priorityClassName")
        if name in value
    ]
    for maps in ("labels", "matchLabels", "selector"):
        own += [each for each in (value.get(maps) or {}).values() if not isinstance(each, dict)]
    return own + [name for each in value.values() for name in names_in(each)]


def test_a_job_has_the_settings_of_the_page_on_metrics() -> None:
    """A job with metrics has the settings for the board of Spark jobs, as given on the page."""
    page = (ROOT / "docs/how-to/observability.md").read_text(encoding="utf-8").partition("## Spark jobs\n")[2]
    lines = page.partition("```text\n")[2].partition("```")[0].splitlines()
    asked = {"=".join(line.split()) for line in lines}
    objects = [one for one in yaml.safe_load_all(render(JOBS_CHART, "--set", "metrics.enabled=true")) if one]
    (driver,) = (one for one in objects if one["kind"] == "StatefulSet")

    assert len(asked) == 6
    assert asked <= set(driver["spec"]["template"]["spec"]["containers"][0]["args"])


def test_notes_name_what_is_insecure() -> None:
    """The notes of a chart name the next steps and each insecure choice."""
    words = ("install", "main", CLUSTER_CHART, "--dry-run=client", "--namespace", "logs")
    plain = tool("helm4", *words).stdout
    opened = tool(
        "helm4", *words, "--set", "cluster.networkPolicy.enabled=false", "--set", "keep=false",
        "--set", "cluster.listeners.data.type=nodeport", "--set", "topics.orders.partitions=1",
        "--set", "cluster.security=null",
    ).stdout  # fmt: skip

    assert "kubectl -n logs wait flc/main --for=condition=Ready" in plain
    assert "samples/user.yaml" in plain
    for insecure in (
        "No client is authenticated",
        "networkPolicy.enabled=false",
        "data.type=nodeport",
        "keep=false",
    ):
        assert insecure not in plain
        assert insecure in opened
    assert "wait flt/orders" in opened
