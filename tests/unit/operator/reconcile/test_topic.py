"""Passes over Topics that need no brokers: unreadable and refused Topics, and the removal of finalizers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import structlog

from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.brokers.topics import TopicCalls
from fairlead_operator.naming import CLUSTER, NAMESPACE, TOPIC, TOPIC_FINALIZER, Manifest, ObjectRef
from fairlead_operator.ports import Forbidden, Key
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.topic import TopicReconciler
from memory_api import MemoryApi, MemoryCache, StandingClock

KEY = Key("Topic", "shop", "flights")
NOBODY = "http://127.0.0.1:1"


def no_rights(api: MemoryApi) -> LastingRights:
    """Return the `LastingRights` of an operator that protects no RoleBinding."""
    return LastingRights(api, MemoryCache(api), "", structlog.get_logger())


@pytest.fixture
def api() -> MemoryApi:
    """Return an API server with the namespace `shop`."""
    made = MemoryApi()
    made.put(NAMESPACE, "shop", "")
    return made


@pytest.fixture
def reconciler(api: MemoryApi) -> TopicReconciler:
    """Return a reconciler whose brokers never answer."""
    clock = StandingClock()
    return TopicReconciler(
        api, MemoryCache(api), TopicCalls(BrokerCalls(NOBODY), clock), clock, no_rights(api)
    )


def put_cluster(api: MemoryApi, namespace: str = "shop", **spec: Any) -> ObjectRef:
    """Create the Cluster `main`."""
    pool = {"name": "a", "firstBrokerId": 0, "replicas": 1}
    return api.put(CLUSTER, "main", namespace, spec={"brokers": [pool], **spec})


def put_topic(api: MemoryApi, namespace: str = "shop", *, deleting: bool = False, **about: Any) -> ObjectRef:
    """Create the Topic `flights` with the operator's finalizer and another finalizer."""
    metadata: Manifest = {"finalizers": ["others.dev/one", TOPIC_FINALIZER]}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T11:59:00Z"
    spec = {"clusterRef": {"name": "main", "namespace": "shop"}, **about.pop("spec", {})}
    return api.put(TOPIC, "flights", namespace, metadata=metadata, spec=spec, **about)


def ready(api: MemoryApi, ref: ObjectRef) -> str:
    """Return the reason of the Ready condition."""
    conditions = api.objects[ref]["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "Ready"))


async def test_an_unreadable_object_is_reported_once(api: MemoryApi, reconciler: TopicReconciler) -> None:
    """An unreadable Topic is reported once, and a second pass writes nothing.

    An unreadable status counts as an empty status.
    """
    ref = put_topic(api, spec={"partitions": "many"}, status={"conditions": "broken"})
    for _ in range(2):
        assert await reconciler.reconcile(KEY) is None

    assert ready(api, ref) == "InvalidSpec"
    assert "spec.partitions" in str(api.objects[ref]["status"]["conditions"])
    assert api.writes == ["status"]


async def test_what_cannot_be_read_holds_nothing_back(api: MemoryApi, reconciler: TopicReconciler) -> None:
    """An unreadable Topic that is being deleted loses the operator's finalizer with one write."""
    ref = put_topic(api, deleting=True, spec={"partitions": "many"})
    for _ in range(2):
        assert await reconciler.reconcile(KEY) is None

    assert api.objects[ref]["metadata"]["finalizers"] == ["others.dev/one"]
    assert api.writes == ["patch"]


async def test_nothing_is_done_for_a_deleted_topic(api: MemoryApi, reconciler: TopicReconciler) -> None:
    """A pass over a deleted Topic writes nothing."""
    assert await reconciler.reconcile(KEY) is None
    assert api.writes == []


async def test_a_missing_cluster_is_reported_and_holds_no_finalizer(
    api: MemoryApi, reconciler: TopicReconciler
) -> None:
    """A Topic without its Cluster is released and gets a status, but no Event: its namespace may be terminating."""
    ref = put_topic(api, status={"topicId": "t"})
    for _ in range(3):
        assert await reconciler.reconcile(KEY) is None

    assert ready(api, ref) == "ClusterNotFound"
    assert api.objects[ref]["status"]["topicId"] == "t"
    assert api.objects[ref]["metadata"]["finalizers"] == ["others.dev/one"]
    assert api.writes == ["patch", "status"]
    assert api.events == []


async def test_a_refusal_is_one_event(api: MemoryApi, reconciler: TopicReconciler) -> None:
    """A refused Topic gets one Event, even if it is reconciled repeatedly."""
    put_cluster(api)
    ref = put_topic(api, "apps")
    for _ in range(3):
        assert await reconciler.reconcile(Key("Topic", "apps", "flights")) is None

    assert ready(api, ref) == "NamespaceNotAllowed"
    assert api.events == [("Warning", "NamespaceNotAllowed")]


async def test_brokers_that_do_not_answer_are_waited_for(api: MemoryApi, reconciler: TopicReconciler) -> None:
    """A Topic whose brokers do not answer is reconciled again after 2 s, and its status is written only once."""
    put_cluster(api)
    ref = put_topic(api)
    delays = [await reconciler.reconcile(KEY) for _ in range(2)]

    assert delays == [2.0, 2.0]
    assert ready(api, ref) == "ClusterNotReady"
    assert api.writes == ["status"]


@pytest.mark.parametrize(
    ("case", "released"),
    [
        ("cluster gone", True),
        ("cluster deleting", True),
        ("namespace ending", True),
        ("never had it", True),
        ("policy Retain", True),
        ("namespace not allowed", True),
        ("another claims it", True),
        ("Cluster's namespace gone with our rights", True),
        ("right to look at namespaces missing", False),
        ("brokers silent", False),
    ],
)
async def test_a_deleted_topic_is_let_go(
    api: MemoryApi, reconciler: TopicReconciler, case: str, released: bool
) -> None:
    """A deleted Topic loses its finalizer unless the brokers must still delete the topic or a right is missing."""
    namespace = "apps" if case == "namespace not allowed" else "shop"
    ref = put_topic(
        api,
        namespace,
        deleting=True,
        spec={"deletionPolicy": "Retain"} if case == "policy Retain" else {},
        status={} if case == "never had it" else {"topicId": "t"},
    )
    api.put(NAMESPACE, "apps", "")
    if case == "Cluster's namespace gone with our rights":
        api.forbidden.add(CLUSTER)
    elif case != "cluster gone":
        cluster = put_cluster(api)
        if case == "cluster deleting":
            api.objects[cluster]["metadata"]["deletionTimestamp"] = "2026-01-01T11:59:00Z"
    if case == "namespace ending":
        api.put(NAMESPACE, "shop", "", metadata={"deletionTimestamp": "2026-01-01T11:59:00Z"})
    if case == "right to look at namespaces missing":
        api.forbidden.add(NAMESPACE)
    if case == "another claims it":
        api.put(
            TOPIC, "second", spec={"name": "flights", "clusterRef": {"name": "main", "namespace": "shop"}}
        )
    delay = await reconciler.reconcile(Key("Topic", namespace, "flights"))

    assert (TOPIC_FINALIZER not in api.objects[ref]["metadata"]["finalizers"]) is released
    assert (delay is None) is released
    if not released:
        assert ready(api, ref) == "Deleting"
    told = {"never had it": "TopicKept", "another claims it": "TopicHandedOver"}.get(case)
    assert told is None or ("Normal", told) in api.events


async def test_a_cluster_that_is_known_and_may_not_be_read_is_no_reason_to_leave_a_topic_behind(
    api: MemoryApi, reconciler: TopicReconciler
) -> None:
    """A Topic keeps its finalizer when its known Cluster may no longer be read, because the right may return."""
    put_cluster(api)
    ref = put_topic(api, deleting=True, status={"topicId": "t"})
    api.forbidden.add(CLUSTER)

    with pytest.raises(Forbidden):
        await reconciler.reconcile(KEY)
    assert TOPIC_FINALIZER in api.objects[ref]["metadata"]["finalizers"]


async def test_an_ending_namespace_goes_before_brokers_that_are_silent(
    api: MemoryApi, reconciler: TopicReconciler
) -> None:
    """A Topic in a namespace being deleted loses its finalizer, without an Event and without deleting its topic."""
    ref = put_topic(api, "apps", deleting=True, status={"topicId": "t"})
    api.put(NAMESPACE, "apps", "", metadata={"deletionTimestamp": "2026-01-01T11:59:00Z"})
    put_cluster(api, topicNamespaces=["apps"])

    assert await reconciler.reconcile(Key("Topic", "apps", "flights")) is None
    assert api.objects[ref]["metadata"]["finalizers"] == ["others.dev/one"]
    assert api.events == []


async def test_no_finalizer_comes_back_into_an_ending_namespace(
    api: MemoryApi, reconciler: TopicReconciler
) -> None:
    """A Topic in a namespace that is being deleted does not get its finalizer back, and nothing else is written."""
    put_cluster(api)
    ref = put_topic(api, status={"topicName": "flights", "topicId": "t"})
    api.objects[ref]["metadata"]["finalizers"] = []
    api.put(NAMESPACE, "shop", "", metadata={"deletionTimestamp": "2026-01-01T11:59:00Z"})

    assert await reconciler.reconcile(KEY) is None
    assert api.objects[ref]["metadata"]["finalizers"] == []
    assert api.writes == []


async def test_a_topic_that_was_saved_just_now_stays(api: MemoryApi) -> None:
    """The deletion policy of the stored Topic applies, not that of the cached Topic."""
    put_cluster(api)
    ref = put_topic(api, deleting=True, status={"topicId": "t"})
    seen = MemoryCache(api)
    stale = copy.deepcopy(api.objects[ref])
    seen.get = lambda ref: stale if ref.kind == TOPIC else api.objects.get(ref)  # type: ignore[method-assign]
    api.objects[ref]["spec"]["deletionPolicy"] = "Retain"
    clock = StandingClock()
    behind = TopicReconciler(api, seen, TopicCalls(BrokerCalls(NOBODY), clock), clock, no_rights(api))

    assert await behind.reconcile(KEY) is None
    assert api.objects[ref]["metadata"]["finalizers"] == ["others.dev/one"]
    del api.objects[ref]
    assert await behind.reconcile(KEY) is None


async def test_a_change_at_the_same_time_is_looked_at_again(
    api: MemoryApi, reconciler: TopicReconciler
) -> None:
    """A finalizer is not written over a newer version of the Topic, which is reconciled again soon."""
    put_cluster(api)
    api.put(TOPIC, "flights", spec={"clusterRef": {"name": "main"}})
    seen = MemoryCache(api)
    stale = copy.deepcopy(api.objects[ObjectRef(TOPIC, "shop", "flights")])
    api.objects[ObjectRef(TOPIC, "shop", "flights")]["metadata"]["resourceVersion"] = "9"
    seen.get = lambda ref: stale if ref.kind == TOPIC else api.objects.get(ref)  # type: ignore[method-assign]
    clock = StandingClock()
    behind = TopicReconciler(api, seen, TopicCalls(BrokerCalls(NOBODY), clock), clock, no_rights(api))

    assert await behind.reconcile(KEY) == 0.5
    assert api.writes == []
