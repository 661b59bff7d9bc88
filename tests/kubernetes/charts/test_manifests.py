"""The files of `make manifests`, and the files that a release packs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart_tools import CHARTS, ROOT, tool
from made_files import PROGRAM, make_manifests

GOLDEN = Path(__file__).with_name("manifests.yaml")
FILES = (
    "install.yaml",
    "base/operator.yaml",
    "overlays/all-namespaces/roles.yaml",
    "overlays/two-replicas/poddisruptionbudget.yaml",
    "spark/job.yaml",
    "monitoring/prometheusrule.yaml",
    "monitoring/dashboards.yaml",
)


def described(one: dict[str, Any]) -> dict[str, Any]:
    """Return kind, name and key fields of an object."""
    name = f"{one['kind']}/{one['metadata']['name']}"
    match one["kind"]:
        case "Deployment" | "StatefulSet":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            key: Any = {
                "replicas": one["spec"]["replicas"],
                "image": container["image"],
                "args": container["args"],
                "env": [each["name"] for each in container.get("env", [])],
            }
        case "Role" | "ClusterRole":
            key = [
                f"{'/'.join(rule['apiGroups'])} {','.join(rule['resources'])}: {','.join(rule['verbs'])}"
                for rule in one["rules"]
            ]
        case "RoleBinding" | "ClusterRoleBinding":
            key = [one["roleRef"]["name"], *(each["name"] for each in one["subjects"])]
        case "CustomResourceDefinition":
            key = [each["name"] for each in one["spec"]["versions"]]
        case "PrometheusRule":
            key = [
                rule.get("alert") or rule["record"]
                for group in one["spec"]["groups"]
                for rule in group["rules"]
            ]
        case "Service":
            key = [each["port"] for each in one["spec"]["ports"]]
        case "ConfigMap":
            key = sorted(one["data"])
        case "Namespace":
            key = one["metadata"]["labels"]
        case _:
            key = sorted(one.get("spec", {}))
    return {name: key}


def test_kinds_names_and_key_fields_are_the_known_ones() -> None:
    """The generated files contain the objects of the golden file, which `UPDATE_GOLDEN=1` writes."""
    make_manifests()
    found = {
        name: [
            described(one)
            for one in yaml.safe_load_all((ROOT / "manifests" / name).read_text(encoding="utf-8"))
            if one
        ]
        for name in FILES
    }
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump(found, sort_keys=True, width=1000), encoding="utf-8")

    assert found == yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))


def test_none_of_the_files_is_in_git() -> None:
    """The generated files are ignored by git, and each definition is in git once."""
    made = [f"manifests/{name}" for name in FILES] + ["charts/fairlead-cluster/values.schema.json"]
    ignored = subprocess.run(
        ["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False
    )
    tracked = subprocess.run(
        ["git", "ls-files", "*s.fairlead.dev.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert ignored.stdout.split() == made
    assert tracked.stdout.split() == [
        "manifests/crds/clusters.fairlead.dev.yaml",
        "manifests/crds/etcdbackups.fairlead.dev.yaml",
        "manifests/crds/links.fairlead.dev.yaml",
        "manifests/crds/rebalances.fairlead.dev.yaml",
        "manifests/crds/topics.fairlead.dev.yaml",
        "manifests/crds/users.fairlead.dev.yaml",
    ]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the files like `make release`."""
    into = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, str(PROGRAM), "--pack", str(into)], check=True)
    return into


def test_a_release_has_everything_that_kubectl_applies(packed: Path) -> None:
    """A release has a complete `install.yaml` and an archive of base, overlays, definitions, samples, rules, boards."""
    (archive,) = packed.glob("fairlead-manifests-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = set(opened.getnames())

    assert (packed / "install.yaml").read_bytes() == (ROOT / "manifests/install.yaml").read_bytes()
    assert {f"manifests/{name}" for name in FILES} <= names
    assert {
        "manifests/base/kustomization.yaml",
        "manifests/crds/topics.fairlead.dev.yaml",
        "manifests/monitoring/boards/fairlead-cluster.json",
        "manifests/monitoring/fairlead.rules.yaml",
        "manifests/samples/cluster.yaml",
    } <= names


@pytest.mark.scenario
@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_packed_chart_renders_what_its_folder_does(packed: Path, chart: Path) -> None:
    """A packed chart contains its definitions, schema and boards and renders like its folder."""
    (archive,) = packed.glob(f"{chart.name}-*.tgz")
    with tarfile.open(archive) as opened:
        names = set(opened.getnames())
    words = ("--kube-version", "1.36.0", "--values", chart / "ci/everything-values.yaml")
    of_archive, of_folder = (
        tool("helm4", "template", "main", source, *words).stdout for source in (archive, chart)
    )

    assert f"{chart.name}/values.schema.json" in names
    assert of_archive == of_folder
