"""Plugin for parallel runs: tests that must stay with one worker, and tests that begin first.

Two workers that run tests of one file would wait for each other to release a resource, and each would create the
fixtures of the file. Therefore one worker runs all tests of a file in `GROUPS`, and other tests are distributed one by
one. The xdist marks for groups have no effect with this pytest.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

GROUPS: Final = {
    # These tests drain the nodes that all of them use, and three brokers at a time are enough for two cores.
    "test_cluster_pods.py": "pods",
    "test_docs_pods.py": "pods",
    "test_managed_etcd.py": "pods",
    "test_real_nodes.py": "pods",
    # Each test uses the second control plane exclusively.
    "test_charts_on_server.py": "alone",
    "test_charts_releases.py": "alone",
    "test_docs_kubernetes.py": "alone",
    "test_operator_rights.py": "alone",
    "test_resources_of_other_releases.py": "alone",
    # These tests share an unpacked image and running brokers.
    "test_image.py": "image",
    "test_topics.py": "topics",
    # These tests share an operator.
    "test_clusters.py": "clusters",
}
"""Groups by file, longest first. The table replaces the marks of xdist, which have no effect with this pytest."""


def group_of(test: str) -> str:
    """Return the group of a test, by default the test itself."""
    return GROUPS.get(PurePath(test.partition("::")[0]).name, test)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes groups and tests in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Schedule by groups, regardless of the options of xdist."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run groups first and then tests with a longer timeout, so that no worker waits for a long test at the end."""
    ranks = {group: rank for rank, group in enumerate(reversed(dict.fromkeys(GROUPS.values())), 1)}
    items.sort(key=lambda item: (ranks.get(group_of(item.nodeid), 0), _given_seconds(item)), reverse=True)


def _given_seconds(item: pytest.Item) -> float:
    """Return the timeout of a Kubernetes test; tests of other folders keep their order."""
    mark = item.get_closest_marker("timeout") if item.get_closest_marker("kubernetes") else None
    return float(mark.args[0]) if mark is not None else 0.0
