"""Common parts of broker and etcd pods: security contexts, topology spread constraints, and the user's template.

The user's template is merged last and takes precedence, except for the identity of a pod: the operator's labels and
annotations, and the identity variables, the data volume and the command of the container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead_api.resources.cluster_parts import PodTemplate, Resources
from fairlead_operator.naming import (
    DATA_VOLUME,
    GROUP,
    HOST_LABEL,
    TEMPORARY_VOLUME,
    USER_ID,
    ZONE_LABEL,
    Manifest,
    Scheme,
)
from fairlead_operator.render.fingerprints import said
from fairlead_operator.render.merge import MERGE_KEYS, strategic_merge

TEMPORARY_SIZE: Final = "64Mi"
"""Size limit of /tmp, which contains no Fairlead data. The root file system of the container is read-only."""
NEVER_NULL: Final = frozenset({"containers", "env", "ports", "volumeMounts", "volumes"})
"""Lists in which the operator owns an entry; a template must not set these lists to null."""
OWN_LABELS: Final = (f"{GROUP}/", "app.kubernetes.io/")


class TemplateRefused(Exception):
    """The user's pod template cannot be merged over a pod; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodParts:
    """A pod as rendered by the operator, before the user's template is merged over it."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Manifest
    """Pod spec with Fairlead's only container."""
    identity: frozenset[str] = field(default_factory=frozenset)
    """Names of the container's identity variables."""


def pod_template(parts: PodParts, template: PodTemplate | None) -> Manifest:
    """Return the pod template of a StatefulSet. Raises `TemplateRefused`."""
    laid = template or PodTemplate()
    _check_lists("spec", laid.spec)
    metadata = laid.metadata
    spec = strategic_merge(parts.spec, laid.spec)
    _put_back(spec, parts)
    return {
        "metadata": {
            "labels": _under(metadata.labels if metadata else {}, parts.labels),
            "annotations": _under(metadata.annotations if metadata else {}, parts.annotations),
        },
        "spec": spec,
    }


def pod_security() -> Manifest:
    """Return a security context for a pod that meets the restricted Pod Security Standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """Return a security context for a container that meets the restricted Pod Security Standard."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }


def spread(selector: Mapping[str, str]) -> list[Manifest]:
    """Return constraints that spread pods over zones and hosts as far as possible and never block scheduling."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(selector)},
        }
        for key in (ZONE_LABEL, HOST_LABEL)
    ]


def temporary_volume() -> Manifest:
    """Return the volume for /tmp."""
    return {"name": TEMPORARY_VOLUME, "emptyDir": {"sizeLimit": TEMPORARY_SIZE}}


def temporary_mount() -> Manifest:
    """Return the volume mount for /tmp."""
    return {"name": TEMPORARY_VOLUME, "mountPath": "/tmp"}  # noqa: S108 - the container's own empty volume


def http_probe(
    path: str, port: str, *, period_seconds: int, failures: int, scheme: Scheme = "http"
) -> Manifest:
    """Return an HTTP probe with a timeout of five seconds; the kubelet does not verify certificates."""
    return {
        "httpGet": {"path": path, "port": port, **({"scheme": "HTTPS"} if scheme == "https" else {})},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def container_resources(
    container: str, resources: Resources | None, template: PodTemplate | None, default: Mapping[str, str]
) -> Manifest:
    """Return the `resources` field of a container, or no field.

    Without resources in the spec the container requests `default`. Resources of the template replace the default, since
    its limits could be below the requests.
    """
    if resources is None:
        return {} if _sets_resources(container, template) else {"resources": {"requests": dict(default)}}
    amounts = said(resources)
    return {"resources": dict(amounts)} if amounts else {}


def _sets_resources(container: str, template: PodTemplate | None) -> bool:
    listed = template.spec.get("containers") if template is not None else None
    named = listed if isinstance(listed, list) else []
    return any(
        isinstance(each, Mapping) and each.get("name") == container and "resources" in each for each in named
    )


def _under(theirs: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Merge the operator's labels or annotations over the user's, without the user's keys in the operator's domains."""
    kept = {key: value for key, value in theirs.items() if not key.startswith(OWN_LABELS)}
    return dict(sorted({**kept, **ours}.items()))


def _put_back(spec: Manifest, parts: PodParts) -> None:
    """Restore the identity of a merged pod."""
    [drawn] = parts.spec["containers"]
    container = next(each for each in spec["containers"] if each["name"] == drawn["name"])
    for part in ("command", "args", "ports", "image"):
        if part in drawn:
            container[part] = _ports(drawn, container) if part == "ports" else drawn[part]
    container["env"] = _named_back(drawn["env"], container["env"], parts.identity)
    mounts = [mount for mount in drawn["volumeMounts"] if mount["name"] != TEMPORARY_VOLUME]
    paths = {mount["mountPath"] for mount in mounts}
    container["volumeMounts"] = mounts + [
        mount for mount in container["volumeMounts"] if mount.get("mountPath") not in paths
    ]
    ours = {volume["name"] for volume in parts.spec["volumes"]} - {TEMPORARY_VOLUME} | {DATA_VOLUME}
    spec["volumes"] = [volume for volume in parts.spec["volumes"] if volume["name"] in ours] + [
        volume for volume in spec["volumes"] if volume.get("name") not in ours
    ]


def _ports(drawn: Manifest, merged: Manifest) -> list[Manifest]:
    """Return the operator's ports, followed by the user's ports that have other numbers and names."""
    numbers = {port["containerPort"] for port in drawn["ports"]}
    names = {port["name"] for port in drawn["ports"]}
    others = [
        port
        for port in merged["ports"]
        if port.get("containerPort") not in numbers and port.get("name") not in names
    ]
    return [*drawn["ports"], *others]


def _named_back(
    drawn: Sequence[Manifest], merged: Sequence[Manifest], identity: frozenset[str]
) -> list[Manifest]:
    by_name = {variable["name"]: variable for variable in drawn if variable["name"] in identity}
    return [by_name.get(str(variable.get("name")), variable) for variable in merged]


def _check_lists(path: str, words: Mapping[str, Any]) -> None:
    """Raise `TemplateRefused` for a merged list with an entry that has no name."""
    for field_name, value in words.items():
        where = f"{path}.{field_name}"
        if isinstance(value, Mapping):
            _check_lists(where, value)
        if field_name in MERGE_KEYS and (value is not None or field_name in NEVER_NULL):
            _check_named(where, MERGE_KEYS[field_name], value)


def _check_named(where: str, names: tuple[str, ...], value: object) -> None:
    if not isinstance(value, list):
        why = f"{where} is not a list"
        raise TemplateRefused(why)
    for place, entry in enumerate(value):
        if not isinstance(entry, Mapping) or entry.get(names[0]) is None:
            why = f"{where}[{place}] has no {names[0]}"
            raise TemplateRefused(why)
        for name in (*names, "name"):
            if not isinstance(entry.get(name), str | int | None):
                why = f"{where}[{place}].{name} is neither text nor a number"
                raise TemplateRefused(why)
        _check_lists(f"{where}[{place}]", entry)
