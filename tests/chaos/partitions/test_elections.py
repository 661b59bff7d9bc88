"""Kafka's eligible_leader_replicas_test and truncation_test: which replica may lead without in-sync replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos_cluster import call, http_client
from chaos_run import TOPIC, ChaosRun, Producers, chaos_run, post
from history_checker import check
from producing_clients import PlainProducer
from reading_clients import SdkReader, read_everything

pytestmark = pytest.mark.etcd


async def _produce_more(run: ChaosRun, count: int) -> None:
    """Produce in addition to the other clients until `count` more sends are acknowledged."""
    run.start(PlainProducer(run.cluster, run.history, TOPIC, 0))
    await run.wait_for_acknowledgements(count)


async def _produce(run: ChaosRun, count: int) -> None:
    """Produce with plain requests until `count` are acknowledged, and stop."""
    await _produce_more(run, count)
    await run.stop_clients()


@pytest.mark.scenario
async def test_an_eligible_replica_leads_when_the_last_in_sync_one_is_gone(tmp_path: Path) -> None:
    """An eligible replica leads after two brokers stop and the last in-sync replica is killed."""
    async with chaos_run(tmp_path, producers=Producers.ONCE, partitions=1) as run:
        await run.create_topic(min_insync_replicas=2)
        await _produce(run, 100)
        partition = await run.partition()
        first, second, last = (run.cluster.node(number) for number in partition.replicas)
        assert await run.cluster.stop(first) == [0]
        await run.cluster.wait_for_partitions(TOPIC, lambda each: first.number not in each.isr)
        assert await run.cluster.stop(second) == [0]
        partitions = await run.cluster.wait_for_partitions(TOPIC, lambda each: each.isr == [last.number])
        assert second.number in partitions[0].elr
        await run.cluster.kill(last)

        await run.cluster.start(first, second)
        alive = {first.number, second.number}
        partitions = await run.cluster.wait_for_partitions(TOPIC, lambda each: each.leader in alive)
        assert partitions[0].leader == second.number, "only the second broker has every record"
        await read_everything(run.cluster, run.history, TOPIC, 1)
        report = check(run.history.events)

        assert (report.verdict, report.anomalies) == ("valid", {})


@pytest.mark.scenario
async def test_readers_learn_of_a_truncation_by_an_unclean_election(tmp_path: Path) -> None:
    """Consumers get an error when their offset is beyond the end of the leader's log after an unclean election."""
    async with chaos_run(tmp_path, producers=Producers.ONCE, partitions=1, settings={"unclean": True}) as run:
        await _set_in_cluster(run, "unclean.leader.election.delay.ms", 500)
        await run.create_topic(unclean_leader_election_enable=True, min_insync_replicas=1)
        await _produce(run, 50)
        partition = await run.partition()
        last, *others = (run.cluster.node(number) for number in partition.replicas)
        kept = max(
            event["offset"] for event in run.history.events if event.get("type") == "ok" and "offset" in event
        )
        await run.cluster.kill(*others)
        await run.cluster.wait_for_partitions(TOPIC, lambda each: each.isr == [last.number])
        await _produce(run, 50)
        reader = SdkReader(run.cluster, run.history, TOPIC, 1)
        run.start(reader)
        while not any(
            event["op"] == "poll" and event["records"][-1][0] > kept for event in run.history.events
        ):
            await run.work(0.1)

        await run.cluster.kill(last)
        await run.cluster.start(*others)
        await run.cluster.wait_for_partitions(
            TOPIC, lambda each: each.leader in {node.number for node in others}
        )
        async with asyncio.timeout(30):
            while not reader.truncations:
                await run.work(0.1)
        told = len(run.history.events)
        await _produce_more(run, 20)
        await run.stop_clients()
        again = [event["records"][0][0] for event in run.history.events[told:] if event["op"] == "poll"]
        await read_everything(run.cluster, run.history, TOPIC, 1)
        report = check(run.history.events)

        assert (report.verdict, report.anomalies) == ("valid", {})
        assert "A2 lost-write" in report.allowed or "A3 unseen" in report.allowed, "nothing was truncated"
        end = reader.truncations[0].data["end_offset"]
        assert again, "the reader did not continue"
        assert min(again) == end, "the reader went back further than the truncation"


@pytest.mark.scenario
async def test_an_unclean_election_needs_permission(tmp_path: Path) -> None:
    """A partition without in-sync replicas waits for them when unclean elections are forbidden, and loses no record."""
    async with chaos_run(tmp_path, producers=Producers.ONCE, partitions=1) as run:
        await run.create_topic(min_insync_replicas=1)
        await _produce(run, 50)
        partition = await run.partition()
        last, *others = (run.cluster.node(number) for number in partition.replicas)
        await run.cluster.kill(*others)
        await run.cluster.wait_for_partitions(TOPIC, lambda each: each.isr == [last.number])
        await _produce(run, 50)
        await run.cluster.kill(last)
        await run.cluster.start(*others)
        await run.cluster.wait_for_partitions(TOPIC, lambda each: each.leader is None)
        async with http_client() as client:
            path = f"{others[0].url}/v1/topics/{TOPIC}/partitions/0:elect"
            refused = await call(client, "POST", path, {"kind": "unclean"})
        assert refused.status >= 400
        await run.cluster.start(last)
        report = await run.finish()

        assert (report.verdict, report.anomalies, run.unsettled) == ("valid", {}, "")


async def _set_in_cluster(run: ChaosRun, key: str, value: object) -> None:
    async with http_client() as client:
        answer = await call(
            client, "PATCH", f"{run.cluster.urls[0]}/v1/cluster/config", {"config": {key: value}}
        )
        assert answer.status == 200, answer.body


@pytest.mark.scenario
async def test_an_operator_may_elect_uncleanly(tmp_path: Path) -> None:
    """An unclean election that an operator requests happens at once if the topic allows it."""
    async with chaos_run(tmp_path, producers=Producers.ONCE, partitions=1, settings={"unclean": True}) as run:
        await _set_in_cluster(run, "unclean.leader.election.delay.ms", 600_000)
        await run.create_topic(unclean_leader_election_enable=True, min_insync_replicas=1)
        partition = await run.partition()
        last, *others = (run.cluster.node(number) for number in partition.replicas)
        await run.cluster.kill(*others)
        await run.cluster.wait_for_partitions(TOPIC, lambda each: each.isr == [last.number])
        await run.cluster.kill(last)
        await run.cluster.start(*others)
        await run.cluster.wait_for_partitions(TOPIC, lambda each: each.leader is None)

        await post(run, f"/v1/topics/{TOPIC}/partitions/0:elect", {"kind": "unclean"})

        await run.cluster.wait_for_partitions(
            TOPIC, lambda each: each.leader in {node.number for node in others}
        )
