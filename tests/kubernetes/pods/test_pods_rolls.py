"""Rolls of a Cluster on real pods under load: blocked by a frozen broker or a bad image, or without their operator."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from cluster_words import condition_of, has
from pods_stage import DEV_IMAGE, NO_IMAGE, SECOND_IMAGE, PodsStage, ReadyPods, is_ready, keep_counts

if TYPE_CHECKING:
    from kube_client import Manifest

pytestmark = [pytest.mark.timeout(900), pytest.mark.scenario]


def test_a_frozen_broker_stops_a_roll(stage: PodsStage) -> None:
    """A frozen broker blocks a roll, which is reported with the partitions, until the broker is resumed."""
    before, mark, api = stage.pods(), stage.kubernetes.audit_mark(), stage.kubernetes.api
    frozen, other = sorted(before.keys() - {stage.controller()})
    with stage.load() as load:
        stage.kubernetes.freeze(frozen, stage.namespace)
        api.wait(f"pod/{frozen}", stage.namespace, lambda each: each and not is_ready(each))
        api.annotate(f"pod/{other}", stage.namespace, {"fairlead.dev/restart": "true"})
        blocked = stage.wait(lambda each: load.topic in condition_of(each, "RollBlocked").get("message", ""))
        during = stage.pods()
        stage.kubernetes.thaw(frozen, stage.namespace)
        stage.wait_replaced(other, before[other])
        stage.wait_done()
    deleted = stage.deleted_pods(mark)
    keep_counts("frozen broker", **load.counts, restarts=len(deleted))

    message = condition_of(blocked, "RollBlocked")["message"]
    assert f"broker {frozen.rpartition('-')[2]} " in message
    assert all(f"{load.topic}-{partition}" in message for partition in range(3))
    assert during == before
    assert load.losses == {}
    assert deleted == [other]


def test_a_roll_outlives_its_operator(stage: PodsStage) -> None:
    """A roll continues after its operator was killed: the next operator restarts the other brokers once each."""
    before, mark = stage.pods(), stage.kubernetes.audit_mark()
    controller = stage.controller()
    first = min(before.keys() - {controller})
    watched = ReadyPods(stage.kubernetes, stage.namespace)
    with stage.load() as load:
        stage.set("config/num.io.threads", "7")
        stage.kubernetes.api.wait(
            f"pod/{first}",
            stage.namespace,
            lambda each: each is None or each["metadata"]["uid"] != before[first],
        )
        stage.operator.stop(signal.SIGKILL)
        stage.start_operator()
        stage.wait_done()
    watched.over.set()
    deleted = stage.deleted_pods(mark)
    keep_counts("killed operator", **load.counts, restarts=len(deleted), fewest_ready=watched.fewest)

    assert load.losses == {}
    assert sorted(deleted) == sorted(before)
    assert (deleted[0], deleted[-1]) == (first, controller)
    assert not set(stage.pods().values()) & set(before.values())
    assert watched.fewest == 2


def test_images_and_resources_change(stage: PodsStage) -> None:
    """An image that cannot start stops only one broker until it is corrected; other changes reach all brokers."""
    stage.kubernetes.tag_image(DEV_IMAGE, SECOND_IMAGE)
    before = stage.pods()
    watched = ReadyPods(stage.kubernetes, stage.namespace)
    with stage.load() as load:
        stage.set("image", NO_IMAGE)
        blocked = stage.wait(has("RollBlocked", "PodFailing"))
        failing = stage.pods()
        mark = stage.kubernetes.audit_mark()
        stage.change({"op": "remove", "path": "/spec/image"})
        repaired = stage.wait_done()
        at_once = stage.deleted_pods(mark)
        after_repair = stage.pods()
        mark = stage.kubernetes.audit_mark()
        stage.set("image", SECOND_IMAGE)
        stage.wait_done()
        by_image = stage.deleted_pods(mark)
        mark = stage.kubernetes.audit_mark()
        stage.set("brokers/0/resources", {"requests": {"cpu": "60m"}})
        stage.wait_done()
        by_resources = stage.deleted_pods(mark)
        pods = stage.kubernetes.api.list("pods", stage.namespace, "app.kubernetes.io/component=broker")
    watched.over.set()
    keep_counts("images and resources", **load.counts, fewest_ready=watched.fewest)

    taken = {name for name in before if failing[name] != before[name]}
    assert len(taken) == 1
    assert condition_of(blocked, "Ready")["status"] == "True"
    assert set(at_once) == taken
    assert {name for name in before if after_repair[name] != before[name]} == taken
    assert condition_of(repaired, "RollBlocked") == {}
    assert sorted(by_image) == sorted(by_resources) == sorted(before)
    assert {broker_of(pod)["image"] for pod in pods} == {SECOND_IMAGE}
    assert {broker_of(pod)["resources"]["requests"]["cpu"] for pod in pods} == {"60m"}
    assert load.losses == {}
    assert watched.fewest == 2


def broker_of(pod: Manifest) -> Manifest:
    """Return the broker's container."""
    found: Manifest = next(each for each in pod["spec"]["containers"] if each["name"] == "broker")
    return found
