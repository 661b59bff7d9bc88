"""Keeps the operator's rights in a namespace that is being deleted until its Topics and Rebalances are released.

If the operator watches listed namespaces, its rights in each namespace come from one RoleBinding, whose ClusterRole is
outside the namespace. The deletion of the namespace deletes the RoleBinding with everything else, and a Topic or
Rebalance with the operator's finalizer would remain forever. To keep its rights, the operator sets a finalizer on the
RoleBinding while a resource in the namespace has one: the API server grants the rights of a RoleBinding that is being
deleted until its last finalizer is removed. A stopping operator removes its finalizers from RoleBindings, because no
other program removes them, and only a running operator needs them. `topic` and `rebalance` call this module before and
after each pass, and `wiring` calls it when a term of leadership begins and when the operator stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from fairlead_operator.naming import GROUP, ROLE_BINDING, Manifest, ObjectRef
from fairlead_operator.ports import ApiError, Forbidden, Invalid, KubernetesApi, NotFound, ObjectCache
from fairlead_operator.reconcile.namespace_end import LAST_SECONDS, NamespaceEnd
from fairlead_operator.telemetry import Log

RIGHTS_FINALIZER: Final = f"{GROUP}/topics"


class LastingRights:
    """Finalizers of the operator on its own RoleBindings."""

    def __init__(self, api: KubernetesApi, cache: ObjectCache, binding: str, log: Log) -> None:
        """`binding`: name of the RoleBinding in each namespace; empty if no RoleBinding is to be protected."""
        self._api = api
        self._binding = binding
        self._end = NamespaceEnd(api, cache)
        self._log = log
        self._held: dict[str, bool] = {}
        """Whether the RoleBinding of a namespace has the finalizer, according to the last read or write."""

    async def begin(self, namespaces: Iterable[str]) -> None:
        """Add or remove finalizers when a term begins, since an earlier leader may have been killed. Never raises."""
        self._held.clear()
        for namespace in namespaces:
            try:
                await self.settle(namespace)
            except ApiError as error:
                self._log.warning("rights not settled", namespace=namespace, error=str(error))

    async def settle(self, namespace: str) -> None:
        """Add or remove the finalizer, as the resources of the namespace require. Raises `ApiError`."""
        await self._set(namespace, needed=self._end.holds_resources(namespace))

    async def hold(self, namespace: str) -> None:
        """Add the finalizer to the RoleBinding, before a resource of the namespace gets a finalizer.

        Raises `ApiError`.
        """
        await self._set(namespace, needed=True)

    async def end(self) -> None:
        """Remove the finalizers, except in namespaces being deleted whose resources the next operator must release.

        Never raises.
        """
        held = [namespace for namespace, held in self._held.items() if held]
        try:
            async with asyncio.timeout(LAST_SECONDS):
                for namespace in held:
                    if not (self._end.holds_resources(namespace) and await self._end.has_begun(namespace)):
                        await self._set(namespace, needed=False)
        except (ApiError, TimeoutError) as error:
            self._log.warning("rights still held", namespaces=held, error=str(error))

    async def _set(self, namespace: str, *, needed: bool) -> None:
        if not self._binding or self._held.get(namespace) is needed:
            return
        ref = ObjectRef(ROLE_BINDING, namespace, self._binding)
        try:
            live = await self._api.get(ref)
            if live is not None:
                await self._write(ref, live, needed=needed)
        except (Forbidden, Invalid, NotFound) as error:
            # The right to patch the RoleBinding may be missing if the chart did not create the rights, and a
            # RoleBinding that is being deleted accepts no finalizer. If the API server refuses the patch, the operator
            # continues without the finalizer.
            if needed:
                self._log.warning("rights not held", namespace=namespace, error=str(error))
        self._held[namespace] = needed

    async def _write(self, ref: ObjectRef, live: Manifest, *, needed: bool) -> None:
        present = live["metadata"].get("finalizers") or []
        wanted = [each for each in present if each != RIGHTS_FINALIZER]
        if needed:
            wanted = [*wanted, RIGHTS_FINALIZER]
        if sorted(wanted) == sorted(present):
            return
        patch: Manifest = {"metadata": {"finalizers": wanted}}
        await self._api.patch(ref, patch, resource_version=live["metadata"]["resourceVersion"])
