"""Whether somebody has paused a resource: one answer for Clusters, Topics and what is counted of them. Pure."""

from __future__ import annotations

from fairlead_operator.naming import PAUSED_ANNOTATION, Manifest


def is_paused(manifest: Manifest) -> bool:
    """Say whether the object's annotation keeps the operator from it."""
    annotations = manifest["metadata"].get("annotations") or {}
    return str(annotations.get(PAUSED_ANNOTATION, "")).lower() == "true"
