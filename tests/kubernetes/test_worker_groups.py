"""Tests that take turns at something are one worker's, and those that take long begin."""

from __future__ import annotations

import pytest

from worker_groups import group_of

FIXTURES = {"kubernetes_pods": "pods", "kubernetes_alone": "alone"}
SPREAD = """
import pytest
@pytest.mark.timeout(500)
def test_elsewhere(): pass
def test_one(): pass
@pytest.mark.timeout(500)
@pytest.mark.kubernetes
def test_slow(): pass
"""
NAMES_WORKER = """
import os, pytest
@pytest.mark.parametrize("number", range(4))
def test_one(number): print("runs in", os.environ["PYTEST_XDIST_WORKER"])
"""
CONFTEST = """
import worker_groups
def pytest_configure(config):
    config.pluginmanager.register(worker_groups)
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give a folder of two groups, and a file of none between them, whose second test is slow."""
    monkeypatch.setenv("PYTHONPATH", __file__.rpartition("/")[0])
    pytester.makeconftest(CONFTEST)
    test = "def test_one(): pass\n"
    names = ("test_charts_on_server", "test_docs_kubernetes", "test_docs_pods", "test_real_nodes")
    pytester.makepyfile(**dict.fromkeys(names, test), test_clusters=SPREAD)
    return pytester


@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "in workers"])
def test_groups_begin_and_stay_together(folder: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    """A worker gets them whole, and then what is spread, of which what may take long comes first."""
    result = folder.runpytest_subprocess("-v", "-p", "no:randomly", *arguments)
    lines = [line.split() for line in result.outlines if " PASSED" in line]
    names = [word.replace(".py::test_", " ") for line in lines for word in line if "::" in word]

    assert names == [
        "test_docs_pods one",
        "test_real_nodes one",
        "test_charts_on_server one",
        "test_docs_kubernetes one",
        "test_clusters slow",
        "test_clusters elsewhere",
        "test_clusters one",
    ]


def test_a_group_is_one_workers(folder: pytest.Pytester) -> None:
    """While a worker has two tests of a group, none of the others gets the third."""
    folder.makepyfile(**dict.fromkeys(("test_cluster_pods", "test_managed_etcd"), NAMES_WORKER))
    result = folder.runpytest_subprocess("-p", "no:randomly", "-rP", "-n", "3")
    workers = [line for line in result.outlines if line.startswith("runs in gw")]

    assert len(workers) == 8
    assert len(set(workers)) == 1


def test_files_are_in_the_groups_of_their_fixtures(request: pytest.FixtureRequest) -> None:
    """No test that takes turns is spread, but for those that run when nothing else does."""
    wrong = [
        item.nodeid
        for item in request.session.items
        for fixture in FIXTURES.keys() & set(getattr(item, "fixturenames", ()))
        if group_of(item.nodeid) != FIXTURES[fixture]
        and not (item.get_closest_marker("serial") or item.get_closest_marker("scenario"))
    ]

    assert wrong == []
