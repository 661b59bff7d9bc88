"""`make bench-cluster`: compares three brokers with three replicas to three Kafka brokers with the same settings.

Throughput is measured in alternating pairs, as in `throughput.py`. Failover, planned moves and many partitions are
measured for Fairlead only and reported with their targets. Topics with a write quorum are compared with topics of
in-sync replicas, and links with MirrorMaker 2. Results are written to build/bench/cluster.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import failover
from cluster_parts import links, quorums
from pairing import Pairs, table
from parts import add_folders, measure_parts
from peers.brokers import HERE, fetch_kafka
from peers.clusters import FairleadCluster, KafkaCluster
from throughput import PARTITIONS, PRODUCER_SETTINGS, VALUE_BYTES

from fairlead import Admin

REPLICAS = 3
MIN_ISR = 2
TOPIC_TOOL = "org.apache.kafka.tools.TopicCommand"


class ClusterBench:
    """The two clusters, and the measurements that are made on both clusters."""

    def __init__(self, fairlead: FairleadCluster, kafka: KafkaCluster, records: int) -> None:
        self._fairlead = fairlead
        self._kafka = kafka
        self._records = records
        self._topics = 0

    def produce_case(self, durability: str, target: float, pairs: int) -> Pairs:
        """Measure producing 100-byte records with acks=all, three replicas and `min.insync.replicas=2`."""
        ours, theirs = [], []
        for _ in range(pairs):
            self._alone(self._fairlead, self._kafka)
            ours.append(self._fairlead_produce(durability))
            self._alone(self._kafka, self._fairlead)
            theirs.append(self._kafka_produce())
        case = f"produce 100 B, RF 3, min ISR 2, acks=all, {durability}"
        return Pairs(case, "records/s", tuple(ours), tuple(theirs), target)

    def _alone(self, measured: FairleadCluster | KafkaCluster, other: FairleadCluster | KafkaCluster) -> None:
        other.pause()
        os.sync()
        measured.resume()
        if isinstance(measured, FairleadCluster):
            # The leases of the cluster expired while its processes were stopped; the cluster recovers by itself, as
            # after any pause.
            asyncio.run(failover.settled(measured))
        else:
            time.sleep(12)

    def _name(self) -> str:
        self._topics += 1
        return f"bench-{self._topics}"

    def _fairlead_produce(self, durability: str) -> float:
        name = self._name()
        config = {"durability": durability, "min.insync.replicas": MIN_ISR}
        asyncio.run(failover.new_topic(self._fairlead, name, PARTITIONS, config))
        command = [
            sys.executable,
            str(HERE / "workloads/workload.py"),
            "produce",
            "--url",
            self._fairlead.bootstrap,
        ]
        command += ["--topic", name, "--partitions", str(PARTITIONS), "--records", str(self._records)]
        command += ["--value-bytes", str(VALUE_BYTES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            msg = f"fairlead produce ended with {done.returncode}: {done.stderr[-3000:]}"
            raise RuntimeError(msg)
        asyncio.run(self._delete(name))
        return float(json.loads(done.stdout)["records_per_second"])

    async def _delete(self, name: str) -> None:
        async with Admin(self._fairlead.bootstrap) as admin:
            await admin.delete_topic(name)

    def _kafka_produce(self) -> float:
        name, server = self._name(), ("--bootstrap-server", self._kafka.bootstrap)
        shape = ("--partitions", str(PARTITIONS), "--replication-factor", str(REPLICAS))
        self._kafka.tool(TOPIC_TOOL, *server, "--create", "--topic", name, *shape)
        arguments = ["--topic", name, "--num-records", str(self._records), "--record-size", str(VALUE_BYTES)]
        arguments += [
            "--throughput",
            "-1",
            "--command-property",
            f"bootstrap.servers={self._kafka.bootstrap}",
        ]
        output = self._kafka.tool(
            "org.apache.kafka.tools.ProducerPerformance", *arguments, *PRODUCER_SETTINGS
        )
        self._kafka.tool(TOPIC_TOOL, *server, "--delete", "--topic", name)
        return float(output.strip().splitlines()[-1].split("sent, ")[1].split(" records/sec")[0])


def throughput(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure throughput of both clusters in alternating pairs."""
    jars = fetch_kafka(options.cache)
    fairlead = FairleadCluster.start(folder / "fairlead", lease_seconds=6)
    try:
        kafka = KafkaCluster.start(folder / "kafka", jars)
    except BaseException:
        fairlead.stop()
        raise
    try:
        bench = ClusterBench(fairlead, kafka, options.records)
        results = [
            bench.produce_case(name, goal, options.pairs)
            for name, goal in (("replicated", 1.5), ("synced", 0.0))
        ]
    finally:
        fairlead.stop()
        kafka.stop()
    print(table(results))
    return {"cases": [result.document() for result in results]}


def alone(
    work: Callable[[FairleadCluster, argparse.Namespace], dict[str, object]],
) -> Callable[[argparse.Namespace, Path], dict[str, object]]:
    """Return a part that only needs a Fairlead cluster, with a lease of 3 s that is renewed every second."""

    def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
        cluster = FairleadCluster.start(folder / "fairlead", lease_seconds=3)
        try:
            return work(cluster, options)
        finally:
            cluster.stop()

    return run


PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, object]]] = {
    "throughput": throughput,
    "failover": alone(failover.leader_kills),
    "cut": alone(failover.leader_stops),
    "moves": alone(failover.planned_moves),
    "rolling": alone(failover.rolling_restart),
    "partitions": alone(failover.many_partitions),
    "slow-follower": quorums.slow_follower,
    "quorum-throughput": alone(quorums.throughput),
    "quorum-failover": alone(quorums.leader_kills),
    "link-throughput": links.throughput,
    "link-lag": links.lag,
    "link-hand-overs": links.hand_overs,
}


def main() -> None:
    """Parse the command line, measure the parts, print the tables and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to measure ({', '.join(PARTS)}); default: all")
    parser.add_argument("--records", type=int, default=2_000_000, help="records of each run")
    parser.add_argument("--pairs", type=int, default=3, help="alternating pairs of each case")
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        help="duration of each measurement in the parts slow-follower and link-lag",
    )
    parser.add_argument("--moves", type=int, default=20, help="number of hand-overs")
    parser.add_argument("--runs", type=int, default=50, help="number of kills and of moves")
    parser.add_argument(
        "--partitions", type=int, default=1000, help="number of partitions in the part with many partitions"
    )
    add_folders(parser)
    options = parser.parse_args()
    measure_parts(PARTS, options, "cluster.json")


if __name__ == "__main__":
    main()
