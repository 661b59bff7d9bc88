"""The world of a seed: brokers, clients, a storm of faults, the rest after it, and the verdict.

Brokers, log, HTTP application, SDK and coordination store are the production code. The parts below this code are
replaced: the loop's clock, threads, the disk, connections (`substitution`).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import random
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from chaos_cluster import call, http_client
from fairlead_api.bodies.metadata import PartitionMetadata
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from group_clients import GROUP, GroupReader
from history_checker import check
from history_recorder import HistoryRecorder
from producing_clients import PlainProducer, SdkProducer
from reading_clients import Asker, PlainReader, SdkReader, read_everything
from simulator.clocks import DAY_SECONDS, Clocks
from virtual_time.coordination import StoreWeather
from virtual_time.life import LIFE, Life
from virtual_time.loop import NothingLeft, VirtualLoop, pass_time
from virtual_time.machine import Machine, VirtualClock
from virtual_time.network import CLIENTS, VirtualNetwork
from virtual_time.substitution import substituted

TOPIC: Final = "chaos"
LEASE_SECONDS: Final = 3
SETTLE_SECONDS: Final = 180.0
CLOCKS_WRONG: Final = (5.0, 30.0)
"""Times in the world between which wall clocks jump."""
CLOCK_ERRORS_FAR: Final = (2 * DAY_SECONDS,)
"""Large errors of wall clocks. A clock that is several days ahead would let retention delete records, and a clock that
is hours behind would let brokers refuse the timestamps of clients."""
SHARED_MEMORY: Final = Path("/dev/shm")


class RestRefused(AssertionError):
    """The cluster is still not at rest some time after the faults have ended."""


@dataclass(slots=True)
class Verdict:
    """The result of a world."""

    seed: int
    violation: Exception | None = None
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    """Log lines of the brokers, if requested."""
    digest: str = ""
    """Digest of the whole history with its times; equal for equal seeds."""
    seconds: float = 0.0
    """Virtual seconds."""


@dataclass(slots=True)
class Plan:
    """The properties that a seed draws for its world."""

    chance: random.Random
    brokers: int
    partitions: int
    min_isr: int
    durability: str
    idempotent: bool
    storm_seconds: float
    members: int
    """Number of members of the consumer group; 0 without a group."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Create the random plan of a seed."""
        chance = random.Random(seed)
        return cls(
            chance,
            brokers=chance.choice((3, 3, 3, 4)),
            partitions=chance.choice((1, 2, 3)),
            min_isr=2,
            durability=chance.choice(("synced", "synced", "replicated")),
            idempotent=chance.random() < 0.5,
            storm_seconds=chance.uniform(8, 25),
            members=chance.choice((0, 1, 2, 3, 4)),
        )


class World:
    """The run of a plan; `urls`, `nodes` and other members have the names that clients of the chaos tests use."""

    def __init__(self, seed: int, loop: VirtualLoop, folder: Path) -> None:
        self.plan = Plan.draw(seed)
        self.seed = seed
        self.chance = self.plan.chance
        self.network = VirtualNetwork(random.Random(seed + 1))
        self.weather = StoreWeather(random.Random(seed + 2))
        self.clocks = Clocks(seed, range(1, self.plan.brokers + 1), *CLOCKS_WRONG, CLOCK_ERRORS_FAR)
        self.counts: Counter[str] = Counter()
        self.history = VirtualRecorder(
            {"acks": "all", "idempotence": self.plan.idempotent, "retries": self.plan.idempotent}, loop
        )
        self.machines: list[Machine] = []
        self.members: list[Member] = []
        self._loop = loop
        self._folder = folder
        self._store: EmbeddedCoordination | None = None

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the brokers."""
        return [machine.url for machine in self.machines]

    async def run(self) -> None:
        """Run the world, and raise `AssertionError` when a guarantee is violated."""
        await self._begin()
        clients = self._clients()
        loop = asyncio.get_running_loop()
        self.members = [Member(self) for _ in range(self.plan.members)]
        tasks = [loop.create_task(client.run()) for client in clients]
        await self._storm()
        await self._calm()
        self.history.note("heal", "ok")
        await pass_time(3.0)
        for client in clients:
            client.stopping.set()
        done, late = await asyncio.wait(tasks, timeout=120)
        assert not late, f"clients hang: {late}"
        for task in done:
            task.result()
        await self._rest()
        await self._members_end()
        await read_everything(self, self.history, TOPIC, self.plan.partitions)  # type: ignore[arg-type]
        self._judge()
        for machine in self.machines:
            await machine.stop()

    # -- the start

    async def _begin(self) -> None:
        store = await EmbeddedCoordination.open(self._folder / "store.sqlite", VirtualClock(self._loop))
        self._store = store
        settings = {
            "lease_seconds": LEASE_SECONDS,
            "config_values": {"replica.lag.time.max.ms": "2000"},
        }
        self.machines = [
            Machine(
                number,
                store,
                self.weather,
                self.network,
                self.chance,
                settings,
                partial(self.clocks.error, number),
            )
            for number in range(1, self.plan.brokers + 1)
        ]
        self.counts["worlds with jumping clocks"] += self.clocks.is_jumping
        for machine in self.machines:
            await machine.start()
            assert machine.running is not None, machine.refusals
        topic = {
            "name": TOPIC,
            "partitions": self.plan.partitions,
            "replication_factor": 3,
            "config": {
                "min.insync.replicas": str(self.plan.min_isr),
                "durability": self.plan.durability,
            },
        }
        await self._ask("POST", "/v1/topics", topic)

    def _clients(self) -> list[Any]:
        partitions = range(self.plan.partitions)
        cluster: Any = self
        clients: list[Any] = [
            SdkProducer(cluster, self.history, TOPIC, partitions, idempotent=self.plan.idempotent),
            SdkReader(cluster, self.history, TOPIC, self.plan.partitions),
            Asker(cluster, self.history, TOPIC, self.plan.partitions),
        ]
        if not self.plan.idempotent:
            clients += [PlainProducer(cluster, self.history, TOPIC, each) for each in partitions]
        return clients + [PlainReader(cluster, self.history, TOPIC, each) for each in partitions]

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the brokers, one after another, until one succeeds."""
        deadline = self._loop.time() + 60
        async with http_client() as client:
            while True:
                for machine in self.machines:
                    with suppress(Exception):
                        answer = await call(client, method, machine.url + path, body, seconds=10)
                        if answer.status < 300:
                            return answer.json
                        told = answer.body
                assert self._loop.time() < deadline, told
                await pass_time(0.2)

    # -- the storm

    async def _storm(self) -> None:
        end = self._loop.time() + self.plan.storm_seconds
        faults = [
            self._kill, self._kill, self._cut_power, self._stop_and_start, self._cut_off, self._cut_off_one_way,
            self._store_away, self._slow, self._unknown_outcomes, self._break_watches, self._end_lease,
            self._cut_off_from_store, self._kill_member, self._leave_and_join,
        ]  # fmt: skip
        kinds = self.chance.sample(faults, self.chance.randint(2, 6))
        while self._loop.time() < end:
            await pass_time(self.chance.uniform(0.2, 3.0))
            fault = self.chance.choice(kinds)
            self.counts[f"fault {fault.__name__.strip('_')}"] += 1
            await fault()

    def _victims(self, count: int = 1) -> list[Machine]:
        alive = [machine for machine in self.machines if machine.running is not None]
        return self.chance.sample(alive, min(count, len(alive)))

    async def _kill(self) -> None:
        # Every broker may be killed, because a killed process keeps its written bytes.
        victims = self._victims(self.chance.choice((1, 1, 2, len(self.machines))))
        for machine in victims:
            machine.kill()
        await self._start_again(victims)

    async def _cut_power(self) -> None:
        """Cut the power of one broker at a time, which loses its unsynced bytes."""
        victims = self._victims()
        for machine in victims:
            machine.cut_power()
        await self._start_again(victims)
        await self._caught_up()

    async def _stop_and_start(self) -> None:
        victims = self._victims()
        for machine in victims:
            with suppress(TimeoutError):
                async with asyncio.timeout(60):
                    await machine.stop()
        await self._start_again(victims)

    async def _start_again(self, machines: list[Machine]) -> None:
        await pass_time(self.chance.uniform(0.0, 2 * LEASE_SECONDS))
        starts = [machine.start() for machine in machines if not machine.alive]
        if self.chance.random() < 0.7 and starts:
            await asyncio.wait(starts, timeout=30)

    async def _cut_off(self) -> None:
        [victim] = self._victims() or [self.machines[0]]
        others = {machine.name for machine in self.machines if machine is not victim}
        links = {(victim.name, each) for each in others} | {(each, victim.name) for each in others}
        if self.chance.random() < 0.5:
            links |= {(CLIENTS, victim.name), (victim.name, CLIENTS)}
        await self._cut(links)

    async def _cut_off_one_way(self) -> None:
        one, other = self.chance.sample(self.machines, 2)
        await self._cut({(one.name, other.name)})

    async def _cut(self, links: set[tuple[str, str]]) -> None:
        self.network.cut |= links
        await pass_time(self.chance.uniform(0.5, 3 * LEASE_SECONDS))
        self.network.cut -= links

    async def _cut_off_from_store(self) -> None:
        victims = {machine.name for machine in self._victims(self.chance.choice((1, 1, 2)))}
        self.weather.cut |= victims
        await pass_time(self.chance.uniform(0.5, 4 * LEASE_SECONDS))
        self.weather.cut -= victims

    async def _store_away(self) -> None:
        self.weather.away = True
        await pass_time(self.chance.uniform(0.2, 3 * LEASE_SECONDS))
        self.weather.away = False

    async def _slow(self) -> None:
        self.network.slow_seconds = self.chance.choice((0.05, 0.5))
        self.weather.slow_seconds = self.chance.choice((0.0, 0.2, 1.0))
        await pass_time(self.chance.uniform(1, 6))
        self.network.slow_seconds = self.weather.slow_seconds = 0.0

    async def _unknown_outcomes(self) -> None:
        self.weather.unknown = self.chance.choice((0.1, 0.4))
        await pass_time(self.chance.uniform(2, 8))
        self.weather.unknown = 0.0

    async def _break_watches(self) -> None:
        self.weather.breaking = 0.2
        await pass_time(self.chance.uniform(2, 8))
        self.weather.breaking = 0.0

    async def _end_lease(self) -> None:
        """End a lease early, as an etcd that was restored or changed its leader may do."""
        for machine in self._victims():
            if machine.coordination is not None and machine.coordination.leases:
                with suppress(Exception):
                    await machine.coordination._inner.revoke(machine.coordination.leases[-1])

    async def _kill_member(self) -> None:
        """Kill a member; other members get its partitions once its session has expired."""
        if self.members:
            member = self.chance.choice(self.members)
            member.kill()
            await pass_time(self.chance.uniform(0.0, 8.0))
            member.start()

    async def _leave_and_join(self) -> None:
        if self.members:
            member = self.chance.choice(self.members)
            await member.leave()
            await pass_time(self.chance.uniform(0.0, 3.0))
            member.start()

    async def _members_end(self) -> None:
        """Wait until the group has committed everything, then let all members leave."""
        if not self.members:
            return
        deadline = self._loop.time() + SETTLE_SECONDS
        while (lag := await self._ask("GET", f"/v1/groups/{GROUP}/lag"))["total_records"]:
            if self._loop.time() > deadline:
                raise RestRefused(str(lag))
            await pass_time(0.5)
        for member in self.members:
            await member.leave()
        self.counts["partitions assigned"] += sum(member.assigned for member in self.members)

    # -- the rest

    async def _calm(self) -> None:
        self.network.cut.clear()
        self.weather.cut.clear()
        self.network.slow_seconds = self.weather.slow_seconds = 0.0
        self.weather.away = False
        self.weather.unknown = self.weather.breaking = 0.0
        self._start_all()

    def _start_all(self) -> None:
        """Start every broker that is not running, as Kubernetes would."""
        for machine in self.machines:
            if not machine.alive:
                machine.start()

    async def _caught_up(self) -> None:
        """Wait for a limited time until all replicas are in sync, so that the next power cut spares the last copy."""
        with suppress(RestRefused):
            await self._rest(20.0)

    async def _rest(self, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until every partition has a leader and every replica is in sync."""
        deadline = self._loop.time() + seconds
        while not all(self._is_whole(each) for each in await self._partitions()):
            if self._loop.time() > deadline:
                starts = {machine.name: machine.refusals for machine in self.machines if machine.refusals}
                message = f"{await self._partitions()} {starts}"
                raise RestRefused(message)
            if seconds == SETTLE_SECONDS:
                self._start_all()
            await pass_time(0.5)

    async def _partitions(self) -> list[PartitionMetadata]:
        answer = await self._ask("GET", f"/v1/metadata?topics={TOPIC}")
        return msgspec.convert(answer["topics"][0]["partitions"], list[PartitionMetadata])

    @staticmethod
    def _is_whole(partition: PartitionMetadata) -> bool:
        return partition.leader is not None and set(partition.isr) == set(partition.replicas)

    # -- the verdict

    def _judge(self) -> None:
        report = check(self.history.events)
        found = (report.verdict, report.anomalies, report.undecided)
        assert found == ("valid", {}, []), found
        for machine in self.machines:
            running = machine.running
            assert running is not None, f"{machine.name} did not start again"
            failure = running.broker.failure
            assert not failure.done(), f"{machine.name} failed: {failure.result()!r}"
        assert not self._loop.unexpected, self._loop.unexpected[0]
        self.counts["acknowledged"] += report.acknowledged
        self.counts["unanswered"] += report.unanswered
        self.counts["values read"] += report.values_read
        self.counts["requests"] += self.network.requests
        self.counts["lost messages"] += self.network.lost
        self.counts["unknown outcomes"] += self.weather.unknown_outcomes
        self.counts["broken watches"] += self.weather.broken_watches


class Member:
    """A sequence of processes that are members of the group."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.assigned = 0
        self.start()

    def start(self) -> None:
        """Start a process."""
        cluster: Any = self._world
        self._life = Life(CLIENTS)
        context = contextvars.copy_context()
        context.run(LIFE.set, self._life)
        self._reader = GroupReader(cluster, self._world.history, TOPIC)
        self._task = asyncio.get_running_loop().create_task(self._reader.run(), context=context)

    async def leave(self) -> None:
        """Leave the group cleanly."""
        self._reader.stopping.set()
        done, _ = await asyncio.wait([self._task], timeout=120)
        assert done, "a member hangs"
        self._task.result()
        self.kill()

    def kill(self) -> None:
        """End the process without leaving."""
        self.assigned += self._reader.assigned
        self._life.end()


class VirtualRecorder(HistoryRecorder):
    """A history whose times are those of the loop's clock."""

    def __init__(self, settings: dict[str, Any], loop: VirtualLoop) -> None:
        super().__init__(settings)
        self._loop = loop

    @property
    def now(self) -> float:
        """Return the time of the loop in seconds."""
        return round(self._loop.time(), 6)


def run(seed: int, *, traced: bool = False, keep: Path | None = None) -> Verdict:
    """Run one world; the history is stored in `keep`, and `traced` keeps the log of the brokers."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    folder = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
    verdict = Verdict(seed)
    trace = verdict.trace if traced else None
    # The time of a garbage collection depends on earlier runs, and closing an abandoned generator schedules a task.
    gc.collect()
    gc.disable()
    try:
        world = World(seed, loop, folder)
        with substituted(loop, world.network, random.Random(seed + 3), trace):
            try:
                loop.run_until_complete(world.run())
            except (AssertionError, NothingLeft, TimeoutError) as error:
                verdict.violation = error
            finally:
                _end_all(loop)
        lines = msgspec.json.Encoder().encode_lines(world.history.events)
        verdict.counts, verdict.seconds = world.counts, loop.time()
        verdict.digest = hashlib.sha256(lines).hexdigest()
        if keep is not None:
            keep.write_bytes(lines)
    finally:
        gc.enable()
        shutil.rmtree(folder)
        asyncio.set_event_loop(None)
        loop.close()
    return verdict


def _end_all(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with suppress(NothingLeft):
            loop.run_until_complete(asyncio.wait(tasks, timeout=60))
