"""Short runs of `chaos.py`; `make chaos` runs the program for the requested time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos_faults import ALONE, FAULTS, inject
from chaos_run import TOPIC, Producers, assert_good, chaos_run
from history_checker import check


@pytest.mark.scenario
@pytest.mark.parametrize("producers", Producers)
async def test_one_broker_keeps_its_promises_under_faults(tmp_path: Path, producers: Producers) -> None:
    """A single broker that is killed, paused and stopped under load produces a valid history."""
    async with chaos_run(tmp_path, 1, producers=producers, etcd_members=0) as run:
        await run.create_topic()
        run.usual_load()
        await run.wait_for_acknowledgements(50)
        await inject(run, random.Random(3), set(ALONE) - {"nothing"}, 8)
        report = await run.finish()

    assert (report.verdict, report.anomalies, report.undecided) == ("valid", {}, [])
    assert run.faults, "no fault took effect on the broker"
    # The valid history becomes invalid when an acknowledged record is removed from all reads.
    acknowledged = next(
        event for event in run.history.events if event["op"] == "send" and event["type"] == "ok"
    )
    lost = acknowledged["offset"]
    sends = {event["id"]: event for event in run.history.events if event.get("type") == "invoke"}
    key = sends[acknowledged["id"]]["key"]
    assert key.startswith(TOPIC)
    harmed = [
        {**event, "records": [each for each in event["records"] if (event["key"], each[0]) != (key, lost)]}
        if "records" in event
        else event
        for event in run.history.events
    ]
    assert check(harmed).verdict == "invalid"


@pytest.mark.etcd
@pytest.mark.parametrize(
    ("producers", "seed", "mode", "brokers"),
    [
        (Producers.IDEMPOTENT, 7, "isr", 3),
        pytest.param(Producers.ONCE, 8, "isr", 3, marks=pytest.mark.scenario),
        (Producers.IDEMPOTENT, 9, "quorum", 3),
        pytest.param(Producers.ONCE, 10, "quorum", 5, marks=pytest.mark.scenario),
    ],
)
async def test_a_cluster_keeps_its_promises_under_faults(
    tmp_path: Path, producers: Producers, seed: int, mode: str, brokers: int
) -> None:
    """A cluster keeps the guarantees of both replication modes while leaders are killed, paused, stopped and cut off.

    With idempotence, every record is stored exactly once. Without idempotence and retries, a write without an answer is
    stored once or not at all.
    """
    faults = {"kill-leader", "pause-leader", "restart-leader", "part-from-all", "part-one-way", "kill-etcd"}
    async with chaos_run(tmp_path, brokers, producers=producers) as run:
        await run.create_replicated_topic(mode)
        run.usual_load()
        await run.wait_for_acknowledgements(50)
        await inject(run, random.Random(seed), faults, 8)
        assert_good(run, await run.finish())

    assert run.faults, "no fault took effect on the cluster"


@pytest.mark.scenario
@pytest.mark.etcd
async def test_an_election_of_etcd_loses_nothing(tmp_path: Path) -> None:
    """Records are kept when the leader of etcd and the controller are killed, even if leases end late."""
    async with chaos_run(tmp_path, etcd_members=3) as run:
        await run.create_topic(min_insync_replicas=2)
        run.usual_load()
        await run.wait_for_acknowledgements(50)
        assert run.cluster.etcd is not None
        member = await run.cluster.etcd.leader()
        member.kill()
        await run.wait_for_acknowledgements(100)
        assert await FAULTS["kill-controller"](run, random.Random(1))
        await run.wait_for_acknowledgements(100)
        assert_good(run, await run.finish())
