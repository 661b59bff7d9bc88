"""A Cluster on real pods that restarts under load: no acknowledged record is lost, and at most one broker is down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fake_nodes import ZONES
from pods_stage import ReadyPods, keep_counts, pods_stage

if TYPE_CHECKING:
    from pathlib import Path

    from pods import KubernetesPods


@pytest.mark.scenario
@pytest.mark.timeout(600)
def test_restarts_under_load_lose_nothing(kubernetes_pods: KubernetesPods, tmp_path: Path) -> None:
    """If a setting that is read at startup changes, each broker restarts once, one at a time, the controller last."""
    with pods_stage(kubernetes_pods, tmp_path) as stage:
        before, controller = stage.pods(), stage.controller()
        mark = kubernetes_pods.audit_mark()
        watched = ReadyPods(kubernetes_pods, stage.namespace)
        with stage.load() as load:
            stage.set("config/num.io.threads", "6")
            stage.wait_done()
        watched.over.set()
        deleted, after = stage.deleted_pods(mark), stage.pods()
        racks = {each["rack"] for each in stage.ask("broker", "list")}
    keep_counts("changed setting", **load.counts, restarts=len(deleted), fewest_ready=watched.fewest)

    assert load.counts["acknowledged"] > 0
    assert load.losses == {}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert sorted(deleted) == sorted(before)
    assert deleted[-1] == controller
    assert watched.fewest == 2
    assert racks == set(ZONES), "every broker knows in which zone its node is"
