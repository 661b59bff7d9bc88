"""Removal of the operator's finalizer from a Topic or a Rebalance."""

from __future__ import annotations

from fairlead_operator.naming import FINALIZERS, Manifest, ObjectRef
from fairlead_operator.ports import KubernetesApi, NotFound


def is_held(manifest: Manifest) -> bool:
    """Return whether the resource has the operator's finalizer."""
    _, finalizer = _finalizer_of(manifest)
    return finalizer in (manifest["metadata"].get("finalizers") or [])


async def take_off(api: KubernetesApi, manifest: Manifest) -> bool:
    """Remove the operator's finalizer, if present, from `manifest`; return False if the resource does not exist.

    Raises `Conflict` if another writer has changed the resource in the meantime, and other kinds of `ApiError`.
    """
    metadata = manifest["metadata"]
    ref, finalizer = _finalizer_of(manifest)
    finalizers = metadata.get("finalizers") or []
    left = [each for each in finalizers if each != finalizer]
    if left == finalizers:
        return True
    patch: Manifest = {"metadata": {"finalizers": left}}
    try:
        await api.patch(ref, patch, resource_version=metadata["resourceVersion"])
    except NotFound:
        return False
    return True


def _finalizer_of(manifest: Manifest) -> tuple[ObjectRef, str]:
    """Return the reference of a resource, and the finalizer that the operator sets on its kind."""
    metadata = manifest["metadata"]
    kind, finalizer = next((kind, each) for kind, each in FINALIZERS.items() if kind.kind == manifest["kind"])
    return ObjectRef(kind, metadata["namespace"], metadata["name"]), finalizer
