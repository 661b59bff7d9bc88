"""Finalizers on the operator's RoleBindings, which keep its rights in a namespace that is being deleted."""

from __future__ import annotations

import pytest
import structlog

from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.brokers.topics import TopicCalls
from fairlead_operator.naming import CLUSTER, NAMESPACE, ROLE_BINDING, TOPIC, TOPIC_FINALIZER, ObjectRef
from fairlead_operator.ports import Key
from fairlead_operator.reconcile.lasting_rights import RIGHTS_FINALIZER, LastingRights
from fairlead_operator.reconcile.topic import TopicReconciler
from memory_api import MemoryApi, MemoryCache, StandingClock

DELETED = {"deletionTimestamp": "2026-01-01T11:59:00Z"}
BINDING = ObjectRef(ROLE_BINDING, "shop", "listed")
KEY = Key("Topic", "shop", "orders")


@pytest.fixture
def api() -> MemoryApi:
    """Return an API server with the RoleBinding of `shop`, a Cluster in `apps`, and its Topic in `shop`."""
    made = MemoryApi()
    for namespace in ("shop", "apps"):
        made.put(NAMESPACE, namespace, "")
    made.put(ROLE_BINDING, "listed", metadata={"finalizers": ["others.dev/one"]})
    pool = {"name": "a", "firstBrokerId": 0, "replicas": 1}
    made.put(CLUSTER, "main", "apps", spec={"brokers": [pool], "topicNamespaces": ["shop"]})
    made.put(TOPIC, "orders", spec={"clusterRef": {"name": "main", "namespace": "apps"}})
    return made


def rights_of(api: MemoryApi, binding: str = "listed") -> LastingRights:
    """Return the `LastingRights` of an operator that has just started."""
    return LastingRights(api, MemoryCache(api), binding, structlog.get_logger())


def reconciler(api: MemoryApi, rights: LastingRights) -> TopicReconciler:
    """Return a reconciler whose brokers never answer."""
    clock = StandingClock()
    calls = TopicCalls(BrokerCalls("http://127.0.0.1:1"), clock)
    return TopicReconciler(api, MemoryCache(api), calls, clock, rights)


def held(api: MemoryApi) -> tuple[bool, bool]:
    """Return whether the Topic and the RoleBinding exist and have the operator's finalizers."""
    objects = [api.objects.get(ref) for ref in (ObjectRef(TOPIC, "shop", "orders"), BINDING)]
    topic, binding = ((each or {"metadata": {}})["metadata"].get("finalizers", []) for each in objects)
    return TOPIC_FINALIZER in topic, RIGHTS_FINALIZER in binding


async def test_rights_last_as_long_as_a_topic_needs_them(api: MemoryApi) -> None:
    """A RoleBinding gets the finalizer before the Topic, and loses it after the Topic when the namespace is deleted."""
    topics = reconciler(api, rights_of(api))
    await topics.reconcile(KEY)
    at_work, writes = held(api), list(api.writes)
    for ref in (ObjectRef(NAMESPACE, "", "shop"), ObjectRef(TOPIC, "shop", "orders"), BINDING):
        api.objects[ref]["metadata"] |= DELETED
    await topics.reconcile(KEY)

    assert at_work == (True, True)
    assert writes[:2] == ["patch", "patch"]
    assert ObjectRef(TOPIC, "shop", "orders") not in api.objects
    assert api.objects[BINDING]["metadata"]["finalizers"] == ["others.dev/one"]


async def test_a_stopping_operator_holds_no_rights(api: MemoryApi) -> None:
    """A stopping operator releases RoleBindings, except in a namespace being deleted that still has Topics."""
    rights = rights_of(api)
    await reconciler(api, rights).reconcile(KEY)
    api.objects[ObjectRef(NAMESPACE, "", "shop")]["metadata"] |= DELETED
    await rights.end()
    ending = held(api)
    del api.objects[ObjectRef(NAMESPACE, "", "shop")]["metadata"]["deletionTimestamp"]
    await rights.end()
    staying = held(api)
    await rights.hold("shop")
    api.objects[ObjectRef(NAMESPACE, "", "shop")]["metadata"] |= DELETED
    api.objects[ObjectRef(TOPIC, "shop", "orders")]["metadata"]["finalizers"] = []
    await rights.end()

    assert ending == (True, True)
    assert staying == (True, False)
    assert held(api) == (False, False)


async def test_a_term_begins_with_what_the_topics_need(api: MemoryApi) -> None:
    """A new term adds missing finalizers, removes unneeded ones, and continues without the right to change them."""
    await reconciler(api, rights_of(api)).reconcile(KEY)
    await rights_of(api).begin(["shop"])
    needed = held(api)
    api.objects[ObjectRef(TOPIC, "shop", "orders")]["metadata"]["finalizers"] = []
    await rights_of(api).begin(["shop", "nowhere"])
    needless = held(api)
    api.forbidden.add(ROLE_BINDING)
    await rights_of(api).begin(["shop"])
    await reconciler(api, rights_of(api)).reconcile(KEY)

    assert (needed, needless) == ((True, True), (False, False))
    assert held(api) == (True, False)


async def test_rights_without_a_binding_are_left_alone(api: MemoryApi) -> None:
    """An operator without a configured RoleBinding changes no RoleBinding."""
    await reconciler(api, rights_of(api, binding="")).reconcile(KEY)

    assert held(api) == (True, False)
