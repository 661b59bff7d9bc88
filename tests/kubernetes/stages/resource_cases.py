"""The tables of valid and invalid custom resources, from the files in `resource_cases/`.

The top of each file describes the format of a case. Lengths are written as `x*250`, because readers do not count
characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from kube_client import Manifest

FOLDER: Final = Path(__file__).parent / "resource_cases"
SAMPLES: Final[dict[str, Manifest]] = {
    "Cluster": {"brokers": [{"name": "a", "replicas": 3, "storage": {"size": "10Gi"}}]},
    "Topic": {"clusterRef": {"name": "main"}, "partitions": 3},
    "User": {"clusterRef": {"name": "main"}},
    "Rebalance": {"clusterRef": {"name": "main"}},
    "EtcdBackup": {"clusterRef": {"name": "main"}, "claimName": "backups"},
    "Link": {
        "clusterRef": {"name": "main"},
        "source": {"bootstrap": ["http://east.example:9520"]},
        "topics": {"include": ["orders-*"]},
    },
}
"""Spec of each kind to which the merge patch of a case is applied."""

NOT_CHECKED: Final = (
    ", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One manifest, and the expected answer from the API server."""

    kind: str
    says: str
    name: str = "main"
    without: str = ""
    """Part that is removed: `spec`, or a field of `spec`."""
    before: Manifest = field(default_factory=dict)
    status: Manifest = field(default_factory=dict)
    spec: Manifest = field(default_factory=dict)
    refused: str = ""
    """Text of the refusal; empty for an accepted manifest."""

    def manifest(self) -> Manifest:
        """Return the object to create."""
        whole = object_of(self.kind, self.name, laid_over(SAMPLES[self.kind], self.spec))
        if self.without == "spec":
            del whole["spec"]
        elif self.without:
            del whole["spec"][self.without]
        return whole

    def stored(self) -> Manifest:
        """Return the object before the change."""
        return object_of(self.kind, self.name, laid_over(SAMPLES[self.kind], self.before))


def object_of(kind: str, name: str, spec: Manifest) -> Manifest:
    """Return an object with its API version, kind, name and spec."""
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def cases(kind: str, how: str) -> list[Case]:
    """Return the cases of a kind that are `created` or `changed`."""
    document = yaml.safe_load((FOLDER / f"{kind.lower()}s.yaml").read_text())
    return [Case(kind, **_spelled_out(entry)) for entry in document[how]]


def every_field() -> list[Manifest]:
    """Return resources that together have every field."""
    return list(yaml.safe_load_all((FOLDER / "every_field.yaml").read_text()))


def laid_over(base: Any, patch: Any) -> Any:
    """Return the base with the merge patch applied: null removes a value, and `the null` stands for null."""
    if patch == "the null":
        return None
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = laid_over(result.get(name), value)
    return result


def words_of(message: str) -> str:
    """Return the part of a refusal about the fields, without the object's name and the note on unchecked rules."""
    words = message.partition(" is invalid: ")[2] or message
    return words.replace(NOT_CHECKED, "").removeprefix("[").removesuffix("]")


def _spelled_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _spelled_out(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_spelled_out(each) for each in value]
    match = re.fullmatch(r"(x|pools)\*(\d+)", value) if isinstance(value, str) else None
    if match is None:
        return value
    return "x" * int(match[2]) if match[1] == "x" else [_pool(number) for number in range(int(match[2]))]


def _pool(number: int) -> Manifest:
    return {"name": f"p{number}", "firstBrokerId": 100 * number, "replicas": 1, "storage": {"size": "1Gi"}}
