"""Manifest with which the operator writes the status of a Link, a Rebalance or a User."""

from __future__ import annotations

from fairlead_operator.naming import Manifest, ObjectRef


def status_manifest(ref: ObjectRef, status: Manifest) -> Manifest:
    """Return the manifest that contains only the identity and the status of a resource."""
    return {
        "apiVersion": ref.kind.api_version,
        "kind": ref.kind.kind,
        "metadata": {"namespace": ref.namespace, "name": ref.name},
        "status": status,
    }
