"""Fingerprints by which a pod that is there is compared with the one that should be.

They cover what a user sees: the words of the Cluster that end up in a pod. How a release of the operator draws them
is left out, so a new operator that adds a variable or a probe changes the template of the StatefulSet, which is
`OnDelete`, and no pod is restarted for it; pods take the new form when something else restarts them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from fairlead_api.resources.resource import Part

HEX_DIGITS: Final = 16
"""Of a fingerprint: 64 bits, for two templates of one StatefulSet to compare."""


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
    """Return the fingerprint of what a user said about a pod. Unset words and empty ones count as not said.

    So a field that a later release adds to the resource changes no fingerprint as long as nobody sets it.
    """
    return fingerprint({name: word for name, word in words.items() if word})
