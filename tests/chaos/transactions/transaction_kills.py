"""Kills, pauses and drains while two programs read orders and write results in transactions; each result counts once.

`python transaction_kills.py --kills 100 --seed 1` runs three brokers, three members of etcd and two workers. Each round
has one fault: the coordinator of the group is killed after etcd has written a commit whose answer is delayed, or as
soon as a commit is written; a leader or a worker is killed; a worker is paused for two of its timeouts, and then
continues beside its successor; a broker is drained, restarted, paused or cut off, or its disk is slow; the leader of
etcd is killed; partitions move; a topic is deleted, trimmed or grown while a transaction is open in it; answers to
clients are lost. Beside the workers, programs of `delayed_calls.py` write in transactions with calls that arrive up to
90 seconds late, and programs of `plain_transactions.py` read and write in transactions without a group. A third worker
joins and leaves the group every ten seconds. With `--spark`, a streaming query copies the orders to another topic by
Spark's sink with `exactlyOnce`, and its driver is killed too. A round ends when further results are committed. The
first rounds have every fault once, and the faults of all other rounds are random. With `--seconds`, no random fault
begins after this time.

At the end, all faults are healed, and readers of committed records read everything: each order has one result in each
topic and one copy of the query, readers saw the results in the same sequence during the faults, the group's offsets are
the end offsets of the orders, the transactions with late calls and with changed topics are whole and as answered, the
checker finds the histories of the other programs valid, and no transaction is open.
The program prints a JSON report, and exits with 1 if any of these conditions is violated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).parents[2] / folder)
    for folder in ("plugins", "plugins/programs", "faults", "checker", "etcd", "chaos", "spark")
)

import structlog
from pyreqwest.client import ClientBuilder

import delayed_calls
import plain_transactions
from changed_topics import ChangedTopics
from chaos_cluster import ETCD, LEASE_SECONDS, ChaosCluster, Node, chaos_cluster, pause
from committed_reads import Places
from delayed_calls import DelayedCalls
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.errors import FairleadError
from links import AnswerTrouble
from plain_transactions import PlainTransactions
from pricing_process import (
    GROUP,
    ORDERS,
    PARTITIONS,
    RESULTS,
    TIMEOUT_SECONDS,
    WORKER,
    PricingProcess,
    ended,
    error_in,
)
from spark_copies import COPIES, SparkCopies
from transaction_judge import WRONG, judge
from visiting_worker import VisitingWorker
from worker_commits import commits

WORKERS: Final = 2
ORDERS_A_BURST: Final = 5
BURST_SECONDS: Final = 0.1
RESULTS_A_ROUND: Final = 20
"""Results that a round must add after its fault."""
PROGRESS_SECONDS: Final = 90.0
"""Time limit for the results after a round, and after the last fault."""
COMMIT_SECONDS: Final = 5.0
"""Maximum time for which a fault waits for a commit."""
ANSWER_SECONDS: Final = 0.5
"""Delay of etcd's answers. The lease of a broker is longer, so the group keeps its coordinator."""
FENCED_SECONDS: Final = 30.0
"""Time for which a worker that was paused may run beside its successor before it is killed."""
DELAY_SECONDS_MAX: Final = 90.0
"""Maximum delay of a late call."""
PAUSED_SECONDS_MAX: Final = 1.5 * LEASE_SECONDS
"""Maximum time for which a broker is paused or cut off; longer than its lease."""
SLOW_DISK: Final = (sys.executable, str(Path(__file__).with_name("slow_disk.py")), "0.3")
"""Program that starts a broker with a slow disk."""
ETCD_MEMBERS: Final = 3
KEPT: Final = Path(__file__).parents[3] / "build" / "transaction-kills"
"""Folder of the processes' data, which stays after a failure."""


class Storm:
    """The load on a cluster, and the faults."""

    def __init__(
        self, cluster: ChaosCluster, rng: random.Random, delay_seconds_max: float, with_spark: bool
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self.delayed = DelayedCalls(cluster, rng, delay_seconds_max)
        self.plain = PlainTransactions(cluster, rng)
        self.changed = ChangedTopics(cluster)
        self.counts: Counter[str] = Counter()
        self.sent = 0
        self.seen: Places = {}
        self.workers = [
            PricingProcess(cluster.folder, cluster.urls, f"{WORKER}{number}") for number in range(WORKERS)
        ]
        self.visitor = VisitingWorker(cluster, self.counts)
        self.copies = SparkCopies(cluster, self.counts)
        self.exits: Counter[str] = Counter()
        """Errors with which workers ended, and `none` for a paused worker that continued alongside its successor."""
        self.is_over = False
        self.faults: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "commits_written_but_not_answered": (30, self.kill_before_answer),
            "coordinators_killed_after_a_commit": (15, self.kill_after_commit),
            "brokers_killed": (15, self.kill_broker),
            "workers_killed": (15, self.kill_worker),
            "zombies_with_a_successor": (7, self.zombie_with_successor),
            "zombies_without_a_successor": (5, self.zombie_alone),
            "drains": (4, self.drain),
            "restarts": (4, self.restart),
            "times_of_lost_answers": (5, self.lose_answers),
            "brokers_paused": (4, self.pause_broker),
            "brokers_cut_off": (4, self.cut_off),
            "partitions_moved": (4, self.move),
            "disks_slowed": (3, self.slow_disk),
            "etcd_leaders_killed": (4, self.kill_etcd_leader),
            "topics_deleted_inside": (4, self.changed.delete),
            "records_deleted_inside": (4, self.changed.trim),
            "topics_grown_inside": (4, self.changed.grow),
        }
        if with_spark:
            self.faults["drivers_killed"] = (4, self.copies.kill)

    @property
    def kills(self) -> int:
        """Number of killed processes."""
        return self.counts["broker_kills"] + self.counts["worker_kills"]

    @property
    def results(self) -> int:
        """Number of results that a reader of committed records has seen."""
        return sum(map(len, self.seen.values()))

    # -- load

    async def fill(self) -> None:
        """Send numbered orders until the end."""
        async with Producer(self.cluster.urls, delivery_timeout="10m") as producer:
            while not self.is_over:
                burst = range(self.sent, self.sent + ORDERS_A_BURST)
                deliveries = [await producer.send(ORDERS, b"%d" % each, key=b"%d" % each) for each in burst]
                for delivery in deliveries:
                    await delivery
                self.sent += ORDERS_A_BURST
                await pause(BURST_SECONDS)

    async def watch(self) -> None:
        """Read committed results until cancelled."""
        async with Consumer(self.cluster.urls, isolation="read_committed") as consumer:
            places = [TopicPartition(topic, each) for topic in RESULTS for each in range(PARTITIONS)]
            await consumer.assign(places)
            while True:
                with suppress(FairleadError):
                    async for batch in consumer:
                        values = self.seen.setdefault((batch.topic, batch.partition), [])
                        values += [value or b"" for value in batch.values]

    async def supervise(self) -> None:
        """Restart each worker that has ended, until cancelled."""
        while True:
            for worker in self.workers:
                if worker.has_ended and not self.is_over:
                    self.exits[error_in(worker.log)] += 1
                    worker.start()
            await pause(0.2)

    async def finish(self) -> None:
        """Heal all faults, wait until all orders have results, and end the load."""
        await self.cluster.heal()
        self.is_over = self.visitor.is_over = True
        await pause(2 * BURST_SECONDS)
        await self.progress(len(RESULTS) * self.sent)
        for worker in (*self.workers, self.visitor.process):
            await worker.end(signal.SIGINT)
        await asyncio.gather(self.delayed.end(), self.plain.end())
        await self.copies.finish()

    # -- faults

    async def round(self, name: str) -> None:
        """Inject one fault, and wait until further results are committed."""
        await self.faults[name][1]()
        self.counts[name] += 1
        await self.progress(self.results + RESULTS_A_ROUND)

    async def progress(self, wanted: int) -> None:
        """Wait until readers have seen a number of results."""
        deadline = time.monotonic() + PROGRESS_SECONDS
        while self.results < wanted:
            await pause(0.05)
            if time.monotonic() > deadline:
                message = f"{self.results} results, not {wanted}, {PROGRESS_SECONDS:g} s after a fault"
                raise TimeoutError(message)

    async def kill_before_answer(self) -> None:
        """Delay etcd's answers to the group's coordinator; kill the coordinator once etcd has written a commit.

        A commit counts as not answered if the coordinator has ended within the delay after the last read of etcd that
        did not show the commit.
        """
        node = await self._coordinator()
        self.cluster.links.delays[ETCD, node.name] = ANSWER_SECONDS
        try:
            before = await self._sees_commit()
            await self._kill(node)
            if before is not None and time.monotonic() - before < ANSWER_SECONDS:
                self.counts["kills_between_write_and_answer"] += 1
        finally:
            self.cluster.links.mend()
        await self._start(node)

    async def kill_after_commit(self) -> None:
        """Kill the coordinator of the group as soon as a commit is written."""
        node = await self._coordinator()
        await self._sees_commit()
        await self._kill(node)
        await self._start(node)

    async def kill_broker(self) -> None:
        """Kill any broker."""
        node = self.rng.choice(self.cluster.nodes)
        await self._kill(node)
        await self._start(node)

    async def kill_worker(self) -> None:
        """Kill a worker, which starts again."""
        await pause(self.rng.uniform(0, 0.3))
        worker = self.rng.choice(self.workers)
        await worker.end()
        self.counts["worker_kills"] += 1
        worker.start()

    async def zombie_with_successor(self) -> None:
        """Pause a worker, start another process with its name, and resume the paused worker after two timeouts."""
        worker = self.rng.choice(self.workers)
        log, zombie = worker.log, worker.pause()
        worker.start()
        await pause(2 * TIMEOUT_SECONDS)
        zombie.send_signal(signal.SIGCONT)
        until = time.monotonic() + FENCED_SECONDS
        while zombie.poll() is None and time.monotonic() < until:
            await pause(0.05)
        self.exits["none" if zombie.poll() is None else error_in(log)] += 1
        await ended(zombie, signal.SIGKILL)

    async def zombie_alone(self) -> None:
        """Pause a worker for two timeouts, while another worker gets its partitions."""
        zombie = self.rng.choice(self.workers).pause()
        await pause(2 * TIMEOUT_SECONDS)
        zombie.send_signal(signal.SIGCONT)

    async def drain(self) -> None:
        """Drain a broker, and end the drain."""
        node = self.rng.choice(self.cluster.nodes)
        async with Admin(self.cluster.urls) as admin:
            await admin.drain_broker(node.number)
            await pause(1.0)
            await admin.undrain_broker(node.number)

    async def restart(self) -> None:
        """Stop a broker gracefully, and start it again."""
        node = self.rng.choice(self.cluster.nodes)
        codes = await self.cluster.stop(node)
        assert codes == [0], f"{node.name} ended with {codes} after a graceful stop"
        await self._start(node)

    async def lose_answers(self) -> None:
        """Lose or delay one in ten answers to clients."""
        self.cluster.links.trouble = AnswerTrouble(0.1, self.rng)
        await pause(2.0)
        self.cluster.links.trouble = None

    async def pause_broker(self) -> None:
        """Pause a broker, possibly for longer than its lease, and resume it."""
        self.cluster.pause(self.rng.choice(self.cluster.nodes))
        await pause(self.rng.uniform(0.2, PAUSED_SECONDS_MAX))
        self.cluster.resume()

    async def cut_off(self) -> None:
        """Hold all traffic between a broker and the other brokers and etcd, while clients reach it."""
        name = self.rng.choice(self.cluster.nodes).name
        others = [ETCD, *(node.name for node in self.cluster.nodes if node.name != name)]
        self.cluster.links.block({pair for other in others for pair in ((name, other), (other, name))})
        await pause(self.rng.uniform(0.2, PAUSED_SECONDS_MAX))
        self.cluster.links.mend()

    async def move(self) -> None:
        """Move a partition that the programs with late calls write to."""
        topic, partition = self.rng.choice(delayed_calls.TOPICS), self.rng.randrange(delayed_calls.PARTITIONS)
        replicas = self.rng.sample([node.number for node in self.cluster.nodes], 2)
        async with Admin(self.cluster.urls) as admin:
            # A move that still runs is replaced.
            await admin.reassign(topic, partition, replicas)

    async def slow_disk(self) -> None:
        """Restart a broker with a slow disk until further results are committed."""
        node = self.rng.choice(self.cluster.nodes)
        for prefix in (SLOW_DISK, ()):
            await self.cluster.stop(node)
            node.process.prefix = prefix
            await self.cluster.start(node)
            await self.progress(self.results + RESULTS_A_ROUND)

    async def kill_etcd_leader(self) -> None:
        """Kill the leader of etcd, and start it again when results are committed under another leader."""
        assert self.cluster.etcd is not None, "the cluster has an etcd"
        leader = await self.cluster.etcd.leader()
        leader.kill()
        await self.progress(self.results + RESULTS_A_ROUND)
        leader.start()
        await self.cluster.etcd.wait_until_ready()

    async def _kill(self, node: Node) -> None:
        await self.cluster.kill(node)
        self.counts["broker_kills"] += 1

    async def _start(self, node: Node) -> None:
        await pause(self.rng.uniform(0.1, 1.5 * LEASE_SECONDS))
        await self.cluster.start(node)

    async def _coordinator(self) -> Node:
        """Return the broker that commits the offsets of the group."""
        async with Admin(self.cluster.urls) as admin:
            while True:
                with suppress(FairleadError):
                    number = (await admin.describe_group(GROUP)).coordinator
                    if number is not None and self.cluster.node(number).process.running:
                        return self.cluster.node(number)
                await pause(0.1)

    async def _sees_commit(self) -> float | None:
        """Wait until etcd has written another commit of a worker; return when it was not yet written, or None."""
        assert self.cluster.etcd is not None, "the cluster has an etcd"
        url, deadline = self.cluster.etcd.members[0].url, time.monotonic() + COMMIT_SECONDS
        async with ClientBuilder().http1_only().build() as client:
            before = await commits(client, url)
            asked = time.monotonic()
            while asked < deadline:
                earlier, asked = asked, time.monotonic()
                if (await commits(client, url)).items() - before.items():
                    return earlier
                await pause(0.005)
        return None


@asynccontextmanager
async def storm(
    folder: Path, rng: random.Random, delay_seconds_max: float, *, with_spark: bool
) -> AsyncIterator[Storm]:
    """Run a cluster with topics, orders and workers, and a streaming query if wanted."""
    async with chaos_cluster(folder, etcd_members=ETCD_MEMBERS) as cluster:
        async with Admin(cluster.urls) as admin:
            for topic in (ORDERS, *RESULTS, COPIES):
                config = {"min.insync.replicas": 2}
                await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3, config=config)
            for topic in delayed_calls.TOPICS:
                await admin.create_topic(topic, partitions=delayed_calls.PARTITIONS, replication_factor=2)
            await admin.create_topic(
                plain_transactions.TOPIC,
                partitions=plain_transactions.PARTITIONS,
                replication_factor=3,
                config={"min.insync.replicas": 2},
            )
        this = Storm(cluster, rng, delay_seconds_max, with_spark)
        await this.changed.create()
        work = (
            this.fill, this.watch, this.supervise, this.visitor.run, this.delayed.run, this.delayed.reads.watch,
            this.plain.run, this.plain.reads.watch, this.copies.run,
        )  # fmt: skip
        tasks = [asyncio.create_task(each()) for each in work]
        try:
            for worker in this.workers:
                worker.start()
            await this.progress(RESULTS_A_ROUND)
            if with_spark:
                await this.copies.start()
            yield this
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in (*this.workers, this.visitor.process):
                await worker.end()
            this.copies.end()


async def prove(
    folder: Path,
    kills: int,
    seed: int,
    names: Sequence[str] | None = None,
    delay_seconds_max: float = DELAY_SECONDS_MAX,
    seconds: float | None = None,
    *,
    with_spark: bool = False,
) -> dict[str, Any]:
    """Inject the named faults one after the other, then random faults until `kills` processes are killed.

    Without names, every fault is injected first. `seconds`: time after which no random fault begins. `with_spark`: a
    streaming query copies the orders too.
    """
    rng, begun = random.Random(seed), time.monotonic()
    async with storm(folder, rng, delay_seconds_max, with_spark=with_spark) as this:
        wanted = (*this.faults, "kills_between_write_and_answer") if names is None else names
        for name in this.faults if names is None else names:
            await this.round(name)
        while this.kills < kills and (seconds is None or time.monotonic() - begun < seconds):
            [name] = rng.choices(list(this.faults), [weight for weight, _ in this.faults.values()])
            await this.round(name)
            sys.stderr.write(f"{this.kills} of {kills} kills, {this.results} results\n")
        await this.finish()
        report = await judge(this)
        report["faults_missing"] = [name for name in wanted if not this.counts[name]]
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "kills": this.kills,
        **dict(sorted(this.counts.items())),
        "workers_that_ended_by": dict(this.exits),
        **report,
        "is_exactly_once": not any(report[each] for each in WRONG),
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="time after which no random fault begins")
    parser.add_argument("--spark", action="store_true", help="copy the orders by a streaming query too")
    arguments = parser.parse_args()
    # A shell starts background jobs with SIGINT ignored, and the interrupted programs would inherit the ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.disable(logging.ERROR)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    proof = prove(
        KEPT, arguments.kills, arguments.seed, seconds=arguments.seconds, with_spark=arguments.spark
    )
    report = asyncio.run(proof)
    if report["is_exactly_once"]:
        shutil.rmtree(KEPT)
    sys.stdout.write(json.dumps(report, indent=1, default=str) + "\n")
    return int(not report["is_exactly_once"])


if __name__ == "__main__":
    sys.exit(main())
