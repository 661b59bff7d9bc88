"""Removal of the operator's finalizer from a Topic."""

from __future__ import annotations

from fairlead_operator.naming import TOPIC, TOPIC_FINALIZER, Manifest, ObjectRef
from fairlead_operator.ports import KubernetesApi, NotFound


async def take_off(api: KubernetesApi, manifest: Manifest) -> bool:
    """Remove the operator's finalizer, if present, from the resource in `manifest`; return False if it is gone.

    Raises `Conflict` if another writer has changed the resource in the meantime, and other kinds of `ApiError`.
    """
    metadata = manifest["metadata"]
    finalizers = metadata.get("finalizers") or []
    left = [each for each in finalizers if each != TOPIC_FINALIZER]
    if left == finalizers:
        return True
    patch: Manifest = {"metadata": {"finalizers": left}}
    ref = ObjectRef(TOPIC, metadata["namespace"], metadata["name"])
    try:
        await api.patch(ref, patch, resource_version=metadata["resourceVersion"])
    except NotFound:
        return False
    return True
