"""Write what is made from the custom resource definitions and from the charts, or check that it is current.

    python .ci/manifests.py [--check]

From `manifests/crds/`: the definitions as templates of the operator's chart, and the other chart's schema of values.
From the operator's chart: `manifests/install.yaml`, the kustomize base, what its overlays add, rules and
boards. From each chart's values: the table in its README. It uses the Helm that the tests build.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/kubernetes"), str(ROOT / "tests/etcd")]

from go_programs import program  # noqa: E402 - found by the line above

CHARTS = ROOT / "charts"
OPERATOR_CHART = CHARTS / "fairlead-operator"
CLUSTER_CHART = CHARTS / "fairlead-cluster"
JOBS_CHART = CHARTS / "fairlead-jobs"
DEFINITIONS = ROOT / "manifests/crds"
NAMESPACE = "fairlead"
RELEASE = "fairlead-operator"
JOB = "flights"
# What only Helm reads, and what would say that Helm manages an object that kubectl applies.
OF_HELM = re.compile(
    r"^ *(helm\.sh/chart: .*|app\.kubernetes\.io/managed-by: Helm|helm\.sh/resource-policy: keep|# Source: .*)\n",
    re.MULTILINE,
)
EMPTY_ANNOTATIONS = re.compile(r"^  annotations:\n(?=  \S|\S|$)", re.MULTILINE)
HEAD = "# Made from the chart by `make manifests`.\n"
TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is not current")
    options = parser.parse_args(arguments)
    # The chart: what Helm renders is made with them.
    steps = (chart_files, rendered_files)
    stale = [path for step in steps for path in put(step(), write=not options.check)]
    if not options.check:
        put(boards_manifest(), write=True)
    for path in stale:
        print(
            f"{path.relative_to(ROOT)} {'is not current' if options.check else 'is written'}", file=sys.stderr
        )
    if stale and options.check:
        print("run: make manifests", file=sys.stderr)
        return 1
    return 0


def put(texts: dict[Path, str], *, write: bool) -> list[Path]:
    """Name the files that differ from what they should be, and write those if asked to."""
    stale = [
        path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale if write else []:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    return stale


def chart_files() -> dict[Path, str]:
    """Return the text of every file of the charts that is made from something else, without Helm."""
    return {
        **{
            OPERATOR_CHART / "templates/crds" / path.name: definition_template(path) for path in definitions()
        },
        CLUSTER_CHART / "values.schema.json": json.dumps(cluster_values_schema(), indent=2) + "\n",
        **{
            chart / "README.md": with_values_table(chart)
            for chart in (OPERATOR_CHART, CLUSTER_CHART, JOBS_CHART)
        },
    }


def rendered_files() -> dict[Path, str]:
    """Return the text of every file that Helm renders."""
    default = render()
    clusterwide = render("--set", "watch.scope=all")
    two = render("--set", "replicas=2")
    watched = render("--set", "prometheusRule.enabled=true")
    rules = OPERATOR_CHART / "rules"
    manifests = ROOT / "manifests"
    crds = "".join("---\n" + path.read_text(encoding="utf-8").removeprefix("---\n") for path in definitions())
    namespace = (manifests / "base/namespace.yaml").read_text(encoding="utf-8")
    return {
        manifests / "install.yaml": f"{HEAD}---\n{namespace}{crds}{default}",
        manifests / "base/operator.yaml": HEAD + default,
        manifests / "overlays/all-namespaces/roles.yaml": HEAD
        + only_kinds(clusterwide, "ClusterRole", "ClusterRoleBinding"),
        manifests / "overlays/two-replicas/poddisruptionbudget.yaml": HEAD
        + only_kinds(two, "PodDisruptionBudget"),
        manifests / "spark/job.yaml": HEAD + rendered(JOB, JOBS_CHART),
        manifests / "monitoring/prometheusrule.yaml": HEAD + only_kinds(watched, "PrometheusRule"),
        **{
            manifests / "monitoring" / f"{path.stem}.rules.yaml": HEAD + path.read_text(encoding="utf-8")
            for path in sorted(rules.glob("*.yaml"))
        },
    }


def boards_manifest() -> dict[Path, str]:
    """Write the boards into the chart, and return them as ConfigMaps for `kubectl apply`; neither is in git."""
    subprocess.run([sys.executable, str(ROOT / "docs/generate/dashboards.py")], check=True)
    watched = render("--set", "dashboards.enabled=true")
    return {ROOT / "manifests/monitoring/dashboards.yaml": HEAD + only_kinds(watched, "ConfigMap")}


# ------------------------------------------------------------------------------------------- definitions


def definitions() -> list[Path]:
    """List the files of the custom resource definitions."""
    return sorted(path for path in DEFINITIONS.glob("*.yaml") if path.stem != "kustomization")


def definition_template(path: Path) -> str:
    """Make a definition a template of the chart: switchable, and kept when the release goes."""
    text = path.read_text(encoding="utf-8")
    assert "{{" not in text, f"{path} holds what Helm would take for a template"
    head, metadata, rest = text.removeprefix("---\n").partition("\nmetadata:\n")
    assert metadata, f"{path} has no metadata"
    assert not rest.startswith("  annotations:"), f"{path} has annotations, which this program does not merge"
    annotations = '  annotations:\n    {{- include "fairlead-operator.crdAnnotations" . | nindent 4 }}\n'
    return f"{{{{- if .Values.crds.enabled }}}}\n{head}{metadata}{annotations}{rest}{{{{- end }}}}\n"


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
    """Return the schema of the values of the chart fairlead-cluster: two of them are resources' specs."""
    topic = spec_schema("Topic")
    topic["properties"].pop("clusterRef")
    topic["required"] = [name for name in topic.get("required", []) if name != "clusterRef"]
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
        },
    }


def json_schema(structural: dict[str, Any]) -> dict[str, Any]:
    """Translate a structural schema of Kubernetes to JSON schema, with unknown members refused."""
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
    """Render the operator's chart as kubectl is to apply it, without definitions."""
    return rendered(RELEASE, OPERATOR_CHART, "--set", "crds.enabled=false", *settings)


def rendered(release: str, chart: Path, *settings: str) -> str:
    """Render a chart as kubectl is to apply it: without tests and traces of Helm."""
    command = (
        str(program("helm4")), "template", release, str(chart), "--namespace", NAMESPACE,
        "--kube-version", "1.36.0", "--skip-tests", *settings,
    )  # fmt: skip
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return EMPTY_ANNOTATIONS.sub("", OF_HELM.sub("", text))


def only_kinds(text: str, *kinds: str) -> str:
    """Keep the documents of some kinds."""
    documents = [part for part in re.split(r"^---\n", text, flags=re.MULTILINE) if part.strip()]
    return "".join(f"---\n{part}" for part in documents if yaml.safe_load(part)["kind"] in kinds)


# ----------------------------------------------------------------------------------------- values' tables


def with_values_table(chart: Path) -> str:
    """Return a chart's README with the table of its values as its values.yaml has them."""
    readme = (chart / "README.md").read_text(encoding="utf-8")
    rows = documented_values((chart / "values.yaml").read_text(encoding="utf-8"))
    table = "\n".join(
        ("| value | default | meaning |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows))
    )
    assert TABLE.search(readme), f"{chart / 'README.md'} has no place for the table of values"
    return TABLE.sub(lambda _: f"{table}\n", readme)


def documented_values(text: str) -> list[tuple[str, str, str]]:
    """Read name, default and comment of each value that has a comment beginning with `# --`."""
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
