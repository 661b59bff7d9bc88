"""Which tests of a parallel run stay with one worker, and which begin first: a plugin that the conftest registers.

Two workers with tests that take turns at something would wait for each other, and each would make for itself what
the tests of a file share. So the tests of such files are for one worker, and all others are spread one by one. The
marks of xdist for groups have no effect with this pytest.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

GROUPS: Final = {
    # They drain nodes, and three brokers at a time are enough for two cores.
    "test_cluster_pods.py": "pods",
    "test_docs_pods.py": "pods",
    "test_managed_etcd.py": "pods",
    "test_real_nodes.py": "pods",
    # Each test has the second control plane alone.
    "test_charts_on_server.py": "alone",
    "test_charts_releases.py": "alone",
    "test_docs_kubernetes.py": "alone",
    "test_operator_rights.py": "alone",
    "test_resources_of_other_releases.py": "alone",
    # They share an image that is unpacked, and running brokers.
    "test_image.py": "image",
    "test_topics.py": "topics",
}
"""Groups by file, the longest first. The marks of xdist would do as well, were they not lost on the way."""


def group_of(test: str) -> str:
    """Return the group of a test, which is the test itself where it has none."""
    return GROUPS.get(PurePath(test.partition("::")[0]).name, test)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives out groups and tests in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Schedule by groups, whatever the options of xdist say."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let groups begin, then what is given more time than others: no worker shall wait for one of them in the end."""
    ranks = {group: rank for rank, group in enumerate(reversed(dict.fromkeys(GROUPS.values())), 1)}
    items.sort(key=lambda item: (ranks.get(group_of(item.nodeid), 0), _given_seconds(item)), reverse=True)


def _given_seconds(item: pytest.Item) -> float:
    """Return the time that a test on a Kubernetes is given; those of other folders stay as they are."""
    mark = item.get_closest_marker("timeout") if item.get_closest_marker("kubernetes") else None
    return float(mark.args[0]) if mark is not None else 0.0
