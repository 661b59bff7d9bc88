"""Kills brokers under load many times, and judges the answers that their clients received.

`python broker_kills.py --kills 10000 --clusters 8 --seed 1` runs clusters of three brokers and an etcd side by side. A
round kills one, two or all brokers of a cluster by SIGKILL at random moments, even during a start. The round starts the
brokers again on their data, and ends when the cluster has acknowledged further records. While readers read, idempotent
producers write with acks=all and `durability=synced`. A history covers up to 250 kills of one cluster, after which
every record is read and `history_checker.py` judges the history. Brokers are ordinary processes, forked by a launcher
that has imported their modules. The leases of most killed brokers are revoked, so that their next start need not wait
for the expiry. The leases of the other killed brokers expire by themselves.

The program prints a JSON report, and its progress each minute. The program exits with 1 if a history is not valid, a
cluster did not recover, no client had requests in flight during the kills, or fewer kills took place than requested.
The files of a history that failed are kept, and the report names their folder. `--seconds` ends the run early without
making the run a failure. The report contains the requested and the actual number of kills.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
import time
from base64 import b64encode
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).parents[1] / folder)
    for folder in ("plugins", "plugins/programs", "faults", "checker", "etcd")
)

import structlog
from pyreqwest.client import ClientBuilder

from chaos_cluster import Node, call, pause
from chaos_run import TOPIC, ChaosRun, as_document, chaos_run
from producing_clients import SdkProducer
from reading_clients import Asker, PlainReader, SdkReader

KILLS_A_HISTORY: Final = 250
VICTIMS: Final = ((1, 2, 3), (50, 25, 25))
"""Numbers of brokers that a round kills, and their weights."""
APART_SECONDS: Final = 0.1
"""Maximum time between two kills of a round."""
DOWN_SECONDS: Final = 0.3
"""Maximum time for which a broker is down."""
EXPIRING_SHARE: Final = 0.05
"""Fraction of the kills after which the lease of the broker expires instead of being revoked."""
STARTING_SHARE: Final = 0.1
"""Fraction of the starts in which the broker is killed again, unless it serves before the kill."""
STARTING_SECONDS: Final = (0.02, 0.5)
"""Minimum and maximum time from a start to the kill that interrupts the start."""
ACKNOWLEDGED_A_ROUND: Final = (1, 40)
"""Minimum and maximum number of sends that a cluster acknowledges after a round."""
PROGRESS_SECONDS: Final = 60.0
"""Time limit for the acknowledged sends after a round."""
PAUSE_SECONDS: Final = 0.1
"""Time between an answer and the next burst of a producer."""
DAY_SECONDS: Final = 86_400.0
"""Time limit of a run without `--seconds`."""
KEPT: Final = Path(__file__).parents[2] / "build" / "broker-kills"
"""Folder for the data of the clusters."""


class Plan:
    """Number of remaining kills, and the counts of all clusters."""

    def __init__(self, kills: int, seconds: float | None, mode: str) -> None:
        """`mode`: replication mode of the topics."""
        self.mode = mode
        self.begun = time.monotonic()
        self.kills: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.failed: list[dict[str, Any]] = []
        self._left = kills
        self._wanted = kills
        self._end = self.begun + (seconds or DAY_SECONDS)

    @property
    def over(self) -> bool:
        """Whether the run has ended, by time or by a failed cluster."""
        return time.monotonic() >= self._end or bool(self.failed)

    def take(self) -> int:
        """Return the number of kills of the next history, or 0 when no kill remains."""
        if self.over:
            return 0
        count = min(self._left, KILLS_A_HISTORY)
        self._left -= count
        return count

    def killed(self, node: Node, run: ChaosRun, kind: str) -> None:
        """Count a kill."""
        run.count(kind)
        self.kills[node.name] += 1
        self.totals[kind] += 1
        self.totals["kills_with_unanswered_sends"] += run.history.in_flight > 0

    async def report_progress(self) -> None:
        """Print the counts each minute, until cancelled."""
        while True:
            await pause(60)
            done, seconds = self.kills.total(), time.monotonic() - self.begun
            sys.stderr.write(
                f"{done:,} of {self._wanted:,} kills after {seconds:.0f} s, {done / seconds:.2f} a second, "
                f"{self.totals['histories']} valid histories with {self.totals['acknowledged']:,} records\n"
            )
            sys.stderr.flush()


class Storm:
    """Kills and restarts the brokers of one cluster."""

    def __init__(self, run: ChaosRun, rng: random.Random, plan: Plan) -> None:
        self._run = run
        self._rng = rng
        self._plan = plan

    async def rage(self, count: int) -> int:
        """Run rounds until `count` brokers were killed; return the number of kills."""
        made, rng, nodes = 0, self._rng, self._run.cluster.nodes
        while made < count and not self._plan.over:
            victims = rng.sample(nodes, min(count - made, *rng.choices(*VICTIMS)))
            self._run.count(f"rounds_of_{len(victims)}")
            made += sum(await asyncio.gather(*(self._cycle(each) for each in victims)))
            await self._progress(rng.randint(*ACKNOWLEDGED_A_ROUND))
        return made

    async def _cycle(self, node: Node) -> int:
        """Kill a broker and start it again; return the number of kills."""
        rng, made = self._rng, 1
        await pause(rng.uniform(0, APART_SECONDS))
        await self._run.cluster.kill(node)
        self._plan.killed(node, self._run, "kills_while_serving")
        await self._end_lease(node)
        await pause(rng.uniform(0, DOWN_SECONDS))
        if rng.random() < STARTING_SHARE and not await self._serves_within(
            node, rng.uniform(*STARTING_SECONDS)
        ):
            made += 1
            self._plan.killed(node, self._run, "kills_while_starting")
            await self._end_lease(node)
        await self._run.cluster.start(node)
        return made

    async def _serves_within(self, node: Node, seconds: float) -> bool:
        """Start a broker. If the broker does not serve within the given time, kill the broker and return False."""
        begun = time.monotonic()
        try:
            await asyncio.to_thread(node.process.start, seconds)
        except RuntimeError:
            if time.monotonic() - begun < seconds:
                raise
            return False
        return True

    async def _end_lease(self, node: Node) -> None:
        """Revoke the lease of a killed broker, as etcd does when a lease expires."""
        etcd = self._run.cluster.etcd
        assert etcd is not None, "the cluster has an etcd"
        if self._rng.random() < EXPIRING_SHARE:
            return
        url, key = etcd.members[0].url, f"/fairlead/fairlead/meta/brokers/{node.number}"
        async with ClientBuilder().http1_only().build() as client:
            found = await call(
                client, "POST", f"{url}/v3/kv/range", {"key": b64encode(key.encode()).decode()}
            )
            for item in found.json.get("kvs", ()):
                await call(client, "POST", f"{url}/v3/lease/revoke", {"ID": item["lease"]})

    async def _progress(self, sends: int) -> None:
        """Wait for further acknowledged sends."""
        history = self._run.history
        wanted, deadline = history.acknowledged + sends, time.monotonic() + PROGRESS_SECONDS
        while history.acknowledged < wanted:
            await self._run.work(0.02)
            if time.monotonic() > deadline:
                message = f"{history.acknowledged} sends are acknowledged {PROGRESS_SECONDS} s after a round"
                raise TimeoutError(message)


def start_load(run: ChaosRun) -> None:
    """Start two idempotent producers on every partition, two readers, and a client that requests log ends."""
    cluster, history, everywhere = run.cluster, run.history, range(run.partitions)
    for _ in range(2):
        run.start(
            SdkProducer(cluster, history, TOPIC, everywhere, idempotent=True, pause_seconds=PAUSE_SECONDS)
        )
    run.start(
        SdkReader(cluster, history, TOPIC, run.partitions),
        PlainReader(cluster, history, TOPIC, 0),
        Asker(cluster, history, TOPIC, run.partitions),
    )


async def one_history(place: Path, rng: random.Random, plan: Plan, count: int) -> None:
    """Kill the brokers of a new cluster, judge the history, and add the result to the counts."""
    made, report = 0, dict[str, Any]()
    # With a lease shorter than the usual 6 s, a running broker on a busy machine could lose its lease, which would be a
    # different fault.
    async with chaos_run(place, environment={"FAIRLEAD_LEASE_SECONDS": "6"}, relayed=False) as run:
        await run.create_replicated_topic(plan.mode, durability="synced")
        start_load(run)
        try:
            await run.wait_for_acknowledgements(20)
            made = await Storm(run, rng, plan).rage(count)
            report = as_document(run, await run.finish())
        except Exception as error:  # noqa: BLE001 - each error of a cluster is a finding, whose data is kept
            plan.failed.append({"folder": str(place), "kills": made, "error": repr(error)})
            return
    good = report["verdict"] == "valid" and not report["anomalies"] and not report["unsettled"]
    if not good or report["acknowledged"] < made:
        plan.failed.append({"folder": str(place), "kills": made, **report})
        return
    plan.totals.update(
        histories=1,
        sends=report["sends"],
        acknowledged=report["acknowledged"],
        records_read=report["values_read"],
        **{name: number for name, number in run.faults.items() if name.startswith("rounds")},
    )
    await asyncio.to_thread(shutil.rmtree, place)


async def work(folder: Path, number: int, seed: int, plan: Plan) -> None:
    """Run histories, each on a new cluster, until all requested kills are done."""
    rng, history = random.Random(f"{seed}.{number}"), 0
    while count := plan.take():
        history += 1
        place = folder / f"cluster-{number}-{history}"
        place.mkdir(parents=True)
        await one_history(place, rng, plan, count)


async def prove(
    folder: Path, kills: int, clusters: int, seconds: float | None, seed: int, mode: str = "isr"
) -> dict[str, Any]:
    """Run all clusters and return the report."""
    plan = Plan(kills, seconds, mode)
    # Each start occupies a thread, and the kills of other clusters need threads at the same time.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8 * clusters))
    async with asyncio.TaskGroup() as group:
        progress = group.create_task(plan.report_progress())
        await asyncio.gather(*(work(folder, number, seed, plan) for number in range(clusters)))
        progress.cancel()
    if not plan.failed:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    wrong = [each for each in plan.failed if each.get("verdict", "valid") == "invalid"]
    done, took = plan.kills.total(), time.monotonic() - plan.begun
    return {
        "seed": seed,
        "mode": mode,
        "clusters": clusters,
        "kills_wanted": kills,
        "kills": done,
        "kills_a_second": round(done / took, 2),
        "kills_by_broker": dict(sorted(plan.kills.items())),
        **dict(sorted(plan.totals.items())),
        "histories_with_lost_doubled_or_reordered_records": len(wrong),
        "failed": plan.failed,
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--clusters", type=int, default=8)
    parser.add_argument("--seconds", type=float, help="time after which no kill is made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--mode", choices=("isr", "quorum"), default="isr", help="replication.mode of the topic"
    )
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder = KEPT / f"{arguments.mode}-{arguments.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    report = asyncio.run(
        prove(folder, arguments.kills, arguments.clusters, arguments.seconds, arguments.seed, arguments.mode)
    )
    sys.stdout.write(json.dumps(report, indent=1, default=str) + "\n")
    return int(bool(report["failed"]) or (arguments.seconds is None and report["kills"] < arguments.kills))


if __name__ == "__main__":
    sys.exit(main())
