"""Removal of finalizers from Topics of a namespace that is being deleted."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from fairlead_operator.naming import NAMESPACE, TOPIC, TOPIC_FINALIZER, Manifest, ObjectRef
from fairlead_operator.ports import Unavailable
from fairlead_operator.reconcile.namespace_end import NamespaceEnd, let_go_at_the_end
from memory_api import MemoryApi, MemoryCache

DELETED = {"deletionTimestamp": "2026-01-01T11:59:00Z"}


@pytest.fixture
def api() -> MemoryApi:
    """Return an API server with the namespace `shop`, which is being deleted, and `apps`, which is not."""
    made = MemoryApi()
    made.put(NAMESPACE, "shop", "", metadata=DELETED)
    made.put(NAMESPACE, "apps", "")
    return made


def put_topic(api: MemoryApi, name: str, namespace: str = "shop", **spec: Any) -> ObjectRef:
    """Create a Topic with the operator's finalizer and another finalizer."""
    metadata: Manifest = {"finalizers": ["others.dev/one", TOPIC_FINALIZER]}
    return api.put(TOPIC, name, namespace, metadata=metadata, spec={"clusterRef": {"name": "main"}, **spec})


def held(api: MemoryApi, *refs: ObjectRef) -> list[bool]:
    """For each Topic, return whether it has the operator's finalizer."""
    return [TOPIC_FINALIZER in api.objects[ref]["metadata"]["finalizers"] for ref in refs]


async def test_what_ends_with_its_cluster_is_let_go(api: MemoryApi) -> None:
    """Topics in a deleted namespace are released; Topics of a Cluster in another namespace only with `all_topics`."""
    own, broken = put_topic(api, "own"), put_topic(api, "broken", clusterRef="main")
    foreign = put_topic(api, "foreign", clusterRef={"name": "main", "namespace": "apps"})
    end = NamespaceEnd(api, MemoryCache(api))

    assert await end.let_go("shop") is True
    assert held(api, own, broken, foreign) == [False, False, True]
    assert api.objects[own]["metadata"]["finalizers"] == ["others.dev/one"]
    assert await end.let_go("shop", all_topics=True) is True
    assert held(api, foreign) == [False]
    assert api.writes == ["patch"] * 3, "a Topic without the finalizer is not written again"


async def test_topics_keep_their_finalizer_where_the_namespace_stays(api: MemoryApi) -> None:
    """Topics keep their finalizer if their namespace is not being deleted, or the operator has no right to read it."""
    topic = put_topic(api, "orders", "apps")
    end = NamespaceEnd(api, MemoryCache(api))

    assert await end.let_go("apps", all_topics=True) is False
    api.forbidden.add(NAMESPACE)
    assert await end.let_go("shop") is False
    assert held(api, topic) == [True]


async def test_a_resource_that_changed_meanwhile_is_let_go_all_the_same(api: MemoryApi) -> None:
    """A Topic that changed since it was cached loses its finalizer, and a deleted Topic causes no error."""
    changed, gone = (put_topic(api, name) for name in ("changed", "gone"))
    seen = MemoryCache(api)
    old = [api.objects[ref] | {"metadata": dict(api.objects[ref]["metadata"])} for ref in (changed, gone)]
    seen.all = lambda kind, namespace=None: old  # type: ignore[method-assign]
    api.objects[changed]["metadata"]["resourceVersion"] = "9"
    del api.objects[gone]

    assert await NamespaceEnd(api, seen).let_go("shop") is True
    assert held(api, changed) == [False]


async def test_the_end_of_the_operator_is_never_held_up() -> None:
    """An unavailable API server is logged and does not delay the exit, and without Topics no request is sent."""

    class Away(MemoryApi):
        async def get(self, ref: ObjectRef) -> Manifest | None:
            raise Unavailable(503, "", f"{ref} is away")

    api, away, empty = MemoryApi(), Away(), Away()
    api.put(NAMESPACE, "shop", "", metadata=DELETED)
    topic = put_topic(api, "orders", clusterRef={"name": "main", "namespace": "apps"})
    put_topic(away, "orders")
    with structlog.testing.capture_logs() as told:
        await let_go_at_the_end(NamespaceEnd(empty, MemoryCache(empty)), "shop", structlog.get_logger())
        await let_go_at_the_end(NamespaceEnd(away, MemoryCache(away)), "shop", structlog.get_logger())
        await let_go_at_the_end(NamespaceEnd(api, MemoryCache(api)), "shop", structlog.get_logger())

    assert [each["event"] for each in told] == ["resources not released", "resources released"]
    assert held(api, topic) == [False]
