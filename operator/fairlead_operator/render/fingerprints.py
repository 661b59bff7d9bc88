"""Fingerprints for the comparison of a running pod with the desired pod.

A fingerprint covers the fields of the Cluster that affect a pod, but not how one release of the operator renders these
fields. A newer operator that adds an environment variable or a probe changes the template of the StatefulSet, but
restarts no pod, since the StatefulSet has the update strategy `OnDelete`. Pods get the new template at their next
restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from fairlead_api.resources.resource import Part

HEX_DIGITS: Final = 16
"""Number of hexadecimal digits in a fingerprint: 64 bits are enough to compare two templates of one StatefulSet."""


def fingerprint(words: Mapping[str, object]) -> str:
    """Return the fingerprint of JSON data; the order of keys does not matter."""
    canonical = json.dumps(words, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:HEX_DIGITS]


def restart_config_hash(restart_config: Mapping[str, str]) -> str:
    """Return the fingerprint of the configuration that brokers read only at startup."""
    return fingerprint(restart_config)


def said(part: Part | None) -> Mapping[str, object]:
    """Return the values that the user set in a part of a resource, without default values; empty for None."""
    return {} if part is None else part.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def pod_spec_hash(words: Mapping[str, object]) -> str:
    """Return the fingerprint of the user's fields for a pod, leaving out unset and empty fields.

    A field that a later release adds to the resource changes no fingerprint as long as the field is unset.
    """
    return fingerprint({name: word for name, word in words.items() if word})
