"""The cache of watched objects: versions, owners, and late deletion events."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_operator.api_server.cache import WatchedObjects
from fairlead_operator.naming import CLUSTER, CLUSTER_LABEL, POD, POD_MONITOR, SERVICE, Kind, ObjectRef

Manifest = dict[str, Any]


def an_object(name: str, version: int, *, uid: str = "u1", cluster: str | None = "main") -> Manifest:
    """Return an object with the given resource version."""
    labels = {CLUSTER_LABEL: cluster} if cluster else {}
    metadata = {
        "name": name,
        "namespace": "shop",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
    }
    return {"metadata": {**metadata, "managedFields": [{"manager": "x"}]}}


def ref(name: str, kind: Kind = POD) -> ObjectRef:
    """Return the reference to an object in the namespace `shop`."""
    return ObjectRef(kind, "shop", name)


@pytest.fixture
def cache() -> WatchedObjects:
    """Return an empty cache."""
    return WatchedObjects()


def test_the_newest_version_counts(cache: WatchedObjects) -> None:
    """The cache keeps the object of the newest version, without managed fields, and ignores older events."""
    answers = [cache.observe(POD, an_object("a", version)) for version in (5, 7, 6, 7)]
    kept = cache.get(ref("a"))

    assert answers == [True, True, False, False]
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == "7"
    assert "managedFields" not in kept["metadata"]


def test_objects_are_found_by_their_cluster(cache: WatchedObjects) -> None:
    """Objects are listed by owner and kind, and a changed label moves an object to another cluster."""
    cache.observe(POD, an_object("a", 1))
    cache.observe(SERVICE, an_object("b", 2, uid="u2"))
    cache.observe(POD, an_object("foreign", 3, uid="u3", cluster=None))
    both, pods = cache.owned_by("shop", "main"), cache.owned_by("shop", "main", POD)
    cache.observe(POD, an_object("a", 4, cluster="other"))

    assert [each["metadata"]["name"] for each in both] == ["a", "b"]
    assert [each["metadata"]["name"] for each in pods] == ["a"]
    assert cache.owned_by("shop", "main", POD) == []
    assert len(cache.owned_by("shop", "other")) == 1
    assert cache.owned_by("else", "main") == []
    assert len(cache.all(POD, "shop")) == 2


def test_what_was_deleted_stays_so(cache: WatchedObjects) -> None:
    """A deleted object is not restored by a late event; an object with the same name and a new uid is added."""
    cache.observe(POD, an_object("a", 5))
    removed = cache.remove(ref("a"), uid="u1", version=9)
    late = cache.observe(POD, an_object("a", 8))
    new = cache.observe(POD, an_object("a", 10, uid="u2"))
    too_late = cache.remove(ref("a"), uid="u1", version=9)

    assert removed is not None
    assert (late, new, too_late) == (False, True, None)
    assert cache.get(ref("a")) is not None
    assert len(cache.owned_by("shop", "main")) == 1


def test_kinds_come_and_go(cache: WatchedObjects) -> None:
    """Objects of a kind that the API server no longer serves are dropped, and cached again when the kind returns."""
    cache.serve([CLUSTER, POD_MONITOR])
    cache.observe(POD_MONITOR, an_object("a", 5))
    served = cache.serves(POD_MONITOR)
    cache.serve([CLUSTER])
    gone = (cache.serves(POD_MONITOR), cache.count(POD_MONITOR), cache.owned_by("shop", "main"))
    cache.serve([CLUSTER, POD_MONITOR])

    assert served
    assert gone == (False, 0, [])
    assert cache.observe(POD_MONITOR, an_object("a", 5))
    assert cache.refs(POD_MONITOR) == {ref("a", POD_MONITOR)}
