"""Fingerprints for the comparison of a running pod with the wanted one.

They cover the fields of the Cluster that end up in a pod, and leave out their rendering by a release of the operator. A
new operator that adds a variable or a probe changes the template of the StatefulSet, which is `OnDelete`, and restarts
no pod; pods take the new form at their next restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from fairlead_api.resources.resource import Part

HEX_DIGITS: Final = 16
"""Hexadecimal digits of a fingerprint: 64 bits, to compare two templates of one StatefulSet."""


def fingerprint(words: Mapping[str, object]) -> str:
    """Return the fingerprint of JSON data, the same for the same data in any order of keys."""
    canonical = json.dumps(words, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:HEX_DIGITS]


def restart_config_hash(restart_config: Mapping[str, str]) -> str:
    """Return the fingerprint of the configuration that brokers read only when they start."""
    return fingerprint(restart_config)


def said(part: Part | None) -> Mapping[str, object]:
    """Return what a user says in a part of a resource, without what is the default anyway; empty for None."""
    return {} if part is None else part.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def pod_spec_hash(words: Mapping[str, object]) -> str:
    """Return the fingerprint of a user's fields for a pod, without unset and empty ones.

    A field that a later release adds to the resource therefore changes no fingerprint while it is unset.
    """
    return fingerprint({name: word for name, word in words.items() if word})
