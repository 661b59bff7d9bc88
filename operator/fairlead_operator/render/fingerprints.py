"""Fingerprints for the comparison of a running pod with the desired pod.

A fingerprint covers the fields of the Cluster that affect a pod, not their rendering by one release of the operator. A
new operator that adds a variable or a probe changes the template of the StatefulSet, which has the strategy `OnDelete`,
and restarts no pod; pods get the new template at their next restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from fairlead_api.resources.resource import Part

HEX_DIGITS: Final = 16
"""Hexadecimal digits of a fingerprint: 64 bits are enough to compare two templates of one StatefulSet."""


def fingerprint(words: Mapping[str, object]) -> str:
    """Return the fingerprint of JSON data; the order of keys does not matter."""
    canonical = json.dumps(words, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:HEX_DIGITS]


def restart_config_hash(restart_config: Mapping[str, str]) -> str:
    """Return the fingerprint of the configuration that brokers read only at startup."""
    return fingerprint(restart_config)


def said(part: Part | None) -> Mapping[str, object]:
    """Return the user's values in a part of a resource, without default values; empty for None."""
    return {} if part is None else part.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def pod_spec_hash(words: Mapping[str, object]) -> str:
    """Return the fingerprint of a user's fields for a pod, without unset and empty fields.

    A field that a later release adds to the resource changes no fingerprint while it is unset.
    """
    return fingerprint({name: word for name, word in words.items() if word})
