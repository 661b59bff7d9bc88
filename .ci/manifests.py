"""Write the files that are generated from definitions and charts; of these files, only the charts' READMEs are in git.

    python .ci/manifests.py [--without-helm | --check | --pack DIRECTORY]

The definitions in `manifests/crds/` are copied into the operator's chart, and the schema for the values of the cluster
chart is derived from the definitions. The code of the boards is converted to JSON in the operator's chart.
`manifests/install.yaml`, the rules, the boards and the files that the kustomize base and its overlays reference are
rendered from the operator's chart. `manifests/spark/job.yaml` is rendered from the jobs chart. The table in the README
of each chart is derived from the values of the chart. An installed `helm` renders the charts; if Helm is not installed,
it is built from its Go module. Tests call this program through `tests/plugins/made_files.py`, and `.ci/release.py`
packs the files with `--pack`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/kubernetes/box"), str(ROOT / "tests/etcd")]

from go_programs import program  # noqa: E402 - the line above adds its folder to the path

OPERATOR_CHART = ROOT / "charts/fairlead-operator"
CLUSTER_CHART = ROOT / "charts/fairlead-cluster"
JOBS_CHART = ROOT / "charts/fairlead-jobs"
CHARTS = (OPERATOR_CHART, CLUSTER_CHART, JOBS_CHART)
MANIFESTS = ROOT / "manifests"
DEFINITIONS = MANIFESTS / "crds"
NAMESPACE = "fairlead"
RELEASE = "fairlead-operator"
JOB = "flights"
# Lines that only Helm reads, and lines that would claim that Helm manages an object which kubectl applies.
OF_HELM = re.compile(
    r"^ *(helm\.sh/chart: .*|app\.kubernetes\.io/managed-by: Helm|helm\.sh/resource-policy: keep|# Source: .*)\n",
    re.MULTILINE,
)
EMPTY_ANNOTATIONS = re.compile(r"^  annotations:\n(?=  \S|\S|$)", re.MULTILINE)
HEAD = "# Generated from the chart by `make manifests`.\n"
TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--without-helm", action="store_true", help="write only the files that need no Helm")
    only.add_argument("--check", action="store_true", help="write nothing, fail if a table is not current")
    only.add_argument("--pack", type=Path, metavar="DIRECTORY", help="write every file and pack them there")
    options = parser.parse_args(arguments)
    if options.check:
        stale = [path for path, text in tables().items() if path.read_text(encoding="utf-8") != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not current; run: make manifests", file=sys.stderr)
        return 1 if stale else 0
    # The files of the charts are written first, since Helm renders them.
    put({**tables(), **chart_files()})
    subprocess.run([sys.executable, str(ROOT / "docs/generate/dashboards.py")], check=True)
    if not options.without_helm:
        put(rendered_files())
    if options.pack:
        pack(options.pack)
    return 0


def put(texts: dict[Path, str]) -> None:
    """Write the files whose text differs from the given text; several processes may write at the same time."""
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
            print(f"{path.relative_to(ROOT)} is written", file=sys.stderr)


def tables() -> dict[Path, str]:
    """Return the text of each chart's README, including the table of values."""
    return {chart / "README.md": with_values_table(chart) for chart in CHARTS}


def chart_files() -> dict[Path, str]:
    """Return the text of every file that is generated without Helm and is not in git, except for the boards."""
    return {
        **{
            OPERATOR_CHART / "definitions" / path.name: path.read_text(encoding="utf-8")
            for path in definitions()
        },
        CLUSTER_CHART / "values.schema.json": json.dumps(cluster_values_schema(), indent=2) + "\n",
        **{
            MANIFESTS / "monitoring" / f"{path.stem}.rules.yaml": HEAD + path.read_text(encoding="utf-8")
            for path in sorted((OPERATOR_CHART / "rules").glob("*.yaml"))
        },
    }


def rendered_files() -> dict[Path, str]:
    """Return the text of every file that Helm renders."""
    default = render()
    clusterwide = render("--set", "watch.scope=all")
    two = render("--set", "replicas=2")
    watched = render("--set", "prometheusRule.enabled=true", "--set", "dashboards.enabled=true")
    crds = "".join("---\n" + path.read_text(encoding="utf-8").removeprefix("---\n") for path in definitions())
    namespace = (MANIFESTS / "base/namespace.yaml").read_text(encoding="utf-8")
    roles = only_kinds(clusterwide, "ClusterRole", "ClusterRoleBinding")
    return {
        MANIFESTS / "install.yaml": f"{HEAD}---\n{namespace}{crds}{default}",
        MANIFESTS / "base/operator.yaml": HEAD + default,
        MANIFESTS / "overlays/all-namespaces/roles.yaml": HEAD + roles,
        MANIFESTS / "overlays/two-replicas/poddisruptionbudget.yaml": HEAD
        + only_kinds(two, "PodDisruptionBudget"),
        MANIFESTS / "spark/job.yaml": HEAD + rendered(JOB, JOBS_CHART),
        MANIFESTS / "monitoring/prometheusrule.yaml": HEAD + only_kinds(watched, "PrometheusRule"),
        MANIFESTS / "monitoring/dashboards.yaml": HEAD + only_kinds(watched, "ConfigMap"),
    }


def pack(into: Path) -> None:
    """Write a release's files for Kubernetes to a folder: `install.yaml`, an archive of `manifests/`, and charts."""
    into.mkdir(parents=True, exist_ok=True)
    shutil.copy(MANIFESTS / "install.yaml", into)
    version = yaml.safe_load((OPERATOR_CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    with tarfile.open(into / f"fairlead-manifests-{version}.tar.gz", "w:gz") as archive:
        for path in sorted(MANIFESTS.rglob("*.yaml")):
            archive.add(path, path.relative_to(ROOT))
        for path in sorted((OPERATOR_CHART / "dashboards").glob("*.json")):
            archive.add(path, Path("manifests/monitoring/boards") / path.name)
    for chart in CHARTS:
        subprocess.run([helm(), "package", str(chart), "--destination", str(into)], check=True)


# ------------------------------------------------------------------------------------------- definitions


def definitions() -> list[Path]:
    """Return the paths of the custom resource definitions."""
    return sorted(path for path in DEFINITIONS.glob("*.yaml") if path.stem != "kustomization")


def spec_schema(kind: str) -> dict[str, Any]:
    """Return the schema of a resource's `spec` in the dialect of the definitions."""
    for path in definitions():
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        if spec["names"]["kind"] == kind:
            schema: dict[str, Any] = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
            return schema
    message = f"no definition of {kind} in {DEFINITIONS}"
    raise LookupError(message)


def cluster_values_schema() -> dict[str, Any]:
    """Return the schema for the values of the fairlead-cluster chart; three of these values are specs of resources."""
    topic, user = _without_cluster(spec_schema("Topic")), _without_cluster(spec_schema("User"))
    strings = {"type": "object", "additionalProperties": {"type": "string"}}
    resource_name = {"pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart fairlead-cluster",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": {
                "type": "object",
                "description": "Values that Helm shares with parent charts; not read",
            },
            "name": {"type": "string"},
            "labels": strings,
            "annotations": strings,
            "keep": {"type": "boolean"},
            "cluster": json_schema(spec_schema("Cluster")),
            "topics": {
                "type": "object",
                "propertyNames": resource_name,
                "additionalProperties": json_schema(topic),
            },
            "users": {
                "type": "object",
                "propertyNames": resource_name,
                "additionalProperties": json_schema(user),
            },
        },
    }


def _without_cluster(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a resource's `spec` without `clusterRef`, which is always the Cluster of the release."""
    properties = {name: schema for name, schema in spec["properties"].items() if name != "clusterRef"}
    required = [name for name in spec.get("required", []) if name != "clusterRef"]
    return {**spec, "properties": properties, "required": required}


def json_schema(structural: dict[str, Any]) -> dict[str, Any]:
    """Convert a structural schema of Kubernetes to a JSON schema that refuses unknown members."""
    kept = {
        name: value
        for name, value in structural.items()
        if not name.startswith("x-kubernetes-") and name not in {"default", "nullable", "format"}
    }
    if structural.get("x-kubernetes-int-or-string"):
        kept |= {"type": ["integer", "string"]}
    for bound in ("exclusiveMinimum", "exclusiveMaximum"):
        if kept.pop(bound, False):
            kept[bound] = kept.pop(bound.removeprefix("exclusive").lower())
    if "properties" in structural:
        kept["properties"] = {name: json_schema(value) for name, value in structural["properties"].items()}
        if not structural.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    for inner in ("items", "additionalProperties"):
        if isinstance(structural.get(inner), dict):
            kept[inner] = json_schema(structural[inner])
    if structural.get("nullable") and "type" in kept:
        kept["type"] = [kept["type"], "null"]
    return kept


# -------------------------------------------------------------------------------------------- rendering


def render(*settings: str) -> str:
    """Return the operator's chart as rendered for kubectl, without definitions."""
    return rendered(RELEASE, OPERATOR_CHART, "--set", "crds.enabled=false", *settings)


def helm() -> str:
    """Return the path of the installed Helm or, if none is installed, of a Helm that is built from its Go module."""
    return shutil.which("helm") or str(program("helm4"))


def rendered(release: str, chart: Path, *settings: str) -> str:
    """Return a chart as rendered for kubectl, without tests and without lines that are specific to Helm."""
    command = (
        helm(), "template", release, str(chart), "--namespace", NAMESPACE,
        "--kube-version", "1.36.0", "--skip-tests", *settings,
    )  # fmt: skip
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return EMPTY_ANNOTATIONS.sub("", OF_HELM.sub("", text))


def only_kinds(text: str, *kinds: str) -> str:
    """Return only the documents of the given kinds."""
    documents = [part for part in re.split(r"^---\n", text, flags=re.MULTILINE) if part.strip()]
    return "".join(f"---\n{part}" for part in documents if yaml.safe_load(part)["kind"] in kinds)


# ----------------------------------------------------------------------------------------- values' tables


def with_values_table(chart: Path) -> str:
    """Return a chart's README in which the table of values matches its values.yaml."""
    readme = (chart / "README.md").read_text(encoding="utf-8")
    rows = documented_values((chart / "values.yaml").read_text(encoding="utf-8"))
    table = "\n".join(
        ("| value | default | meaning |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows))
    )
    assert TABLE.search(readme), f"{chart / 'README.md'} has no place for the table of values"
    return TABLE.sub(lambda _: f"{table}\n", readme)


def documented_values(text: str) -> list[tuple[str, str, str]]:
    """Return the name, default and comment of each value whose comment begins with `# --`."""
    rows: list[tuple[str, str, str]] = []
    defaults = yaml.safe_load(text)
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        words, depth = line.strip(), (len(line) - len(line.lstrip())) // 2
        if words.startswith("# --"):
            comment = [words.removeprefix("# --").strip()]
        elif words.startswith("#") and comment:
            comment.append(words.removeprefix("#").strip())
        elif key := re.match(r"([\w.-]+):", words):
            parents[depth:] = [key[1]]
            if comment:
                rows.append((f"`{'.'.join(parents)}`", _default(defaults, parents), " ".join(comment)))
            comment = []
        else:
            comment = []
    return rows


def _default(values: Any, path: list[str]) -> str:
    for name in path:
        values = values[name]
    return f"`{json.dumps(values)}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
