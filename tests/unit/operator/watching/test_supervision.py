"""Handling of the answers to the operator's own writes, which arrive before the watches report the change."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import structlog

from fairlead_operator.api_server.cache import WatchedObjects
from fairlead_operator.api_server.client import ApiClient, Requests
from fairlead_operator.api_server.connection import Connection
from fairlead_operator.clock import SystemClock
from fairlead_operator.naming import CLUSTER, TOPIC
from fairlead_operator.ports import Key
from fairlead_operator.settings import Scope
from fairlead_operator.telemetry import Telemetry
from fairlead_operator.watching.supervision import Watching

Manifest = dict[str, Any]
LOG = structlog.get_logger()


class Wanted:
    """A sink that records the keys to reconcile (`ports.WorkSink`)."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def add(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """See `WorkSink.add`."""
        assert not delay_seconds
        self.keys.append(key)


def a_cluster(ready: str, version: str) -> Manifest:
    """Return the Cluster of the Topic."""
    return {
        "metadata": {"name": "main", "namespace": "shop", "uid": "1", "resourceVersion": version},
        "spec": {"brokers": []},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def watching(cache: WatchedObjects, wanted: Wanted) -> Watching:
    """Return the component that keeps the cache up to date, with an API client that sends no request."""
    connection = Connection(Path("none"))
    api = ApiClient(
        Requests(connection, Telemetry(LOG), lambda: 0.5),
        LOG,
        may_write=lambda: 0.0,
        seen=lambda kind, manifest: None,
    )
    found = Watching(api, connection, cache, Scope(("shop",)), identity="a", clock=SystemClock(), log=LOG)
    found.set_sink(wanted)
    return found


def test_a_cluster_that_is_written_ready_wakes_its_topics() -> None:
    """A Cluster that becomes ready queues its Topics at once, but is not queued itself."""
    cache, wanted = WatchedObjects(), Wanted()
    topic: Manifest = {
        "kind": "Topic",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "2", "resourceVersion": "2"},
        "spec": {"clusterRef": {"name": "main"}},
    }
    cache.observe(CLUSTER, a_cluster("False", "1"))
    cache.observe(TOPIC, topic)
    told = watching(cache, wanted)
    told.written(CLUSTER, a_cluster("False", "3"))
    unready = list(wanted.keys)
    told.written(CLUSTER, a_cluster("True", "4"))
    told.written(CLUSTER, a_cluster("True", "4"))

    assert unready == []
    assert wanted.keys == [Key("Topic", "shop", "orders")]


def test_own_writes_of_other_objects_queue_no_pass() -> None:
    """A finalizer that the operator adds to a Topic is cached, and no key is queued."""
    cache, wanted = WatchedObjects(), Wanted()
    topic: Manifest = {
        "kind": "Topic",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "2", "resourceVersion": "2"},
        "spec": {"clusterRef": {"name": "main"}},
    }
    cache.observe(TOPIC, topic)
    held = copy.deepcopy(topic)
    held["metadata"] |= {"resourceVersion": "3", "finalizers": ["fairlead.dev/topic"]}
    watching(cache, wanted).written(TOPIC, held)

    assert wanted.keys == []
    assert [each["metadata"]["finalizers"] for each in cache.all(TOPIC)] == [["fairlead.dev/topic"]]
