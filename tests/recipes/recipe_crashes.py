"""Crashes the programs of docs/how-to/delivery-guarantees.md many times, and counts the effects of every record.

Each run of a program gets new records and a random crash point. After the last crash, the program runs until no work is
left. Finally, the effects of every record are counted: at most, at least, or exactly one, as the page states. The
harness removes the dead member of a group without waiting for its session to end.

`python recipe_crashes.py --crashes 100 --seed 7` prints a JSON report and exits with 1 when a guarantee was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final, TypeAlias

sys.path.extend(str(Path(__file__).parents[1] / "plugins" / each) for each in ("brokers", "programs"))

import psycopg
import structlog

from broker_kit import Calls
from crashing import NOTE, STDERR, Crash, CrashKind, start
from fairlead import Admin, Consumer, Producer
from postgresql_server import DATABASE, postgresql_server
from recipe_page import write_program

TOPIC: Final = "orders"
PARTITIONS: Final = 2
BATCHES_A_LIFE: Final = 6
RECORDS_A_BATCH: Final = 3
LINES_MAX: Final = 60
"""Maximum number of lines before a crash, below the number of lines in a run, so that most runs crash before their
end."""
DELAY_SECONDS_MAX: Final = 0.03
LIFE_SECONDS_MAX: Final = 5.0
"""Seconds after which a run that has not reached its line is killed, because it has no work left."""
END_SECONDS_MAX: Final = 60.0
QUIET: Final = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])

Counts: TypeAlias = Callable[[Path, dict[str, str]], Counter[str]]
"""Function that returns the number of effects of each customer's order, given a program's folder and environment."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A program of the page, its guaranteed bounds, and the place where its effects are counted."""

    program: str
    at_least: int
    at_most: int | None
    effects: Counts
    group: str | None = None
    uses_postgresql: bool = False
    output: str | None = None
    """Topic with the effects of a program that writes to a topic."""


def _lines(name: str) -> Counts:
    def count(folder: Path, environment: dict[str, str]) -> Counter[str]:
        del environment
        path = folder / name
        return Counter(path.read_text(encoding="utf-8").splitlines() if path.exists() else ())

    return count


def _in_sqlite(folder: Path, environment: dict[str, str]) -> Counter[str]:
    del environment
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        return Counter(dict(database.execute("SELECT customer, cents FROM revenue").fetchall()))


def _in_postgresql(folder: Path, environment: dict[str, str]) -> Counter[str]:
    del folder
    server = f"host={environment['PGHOST']} user={environment['PGUSER']}"
    with psycopg.connect(f"{server} dbname={DATABASE}") as database:
        return Counter(dict(database.execute("SELECT customer, cents FROM revenue").fetchall()))


RECIPES: Final = (
    Recipe("at_most_once.py", 0, 1, _lines("announced.txt"), "announcer"),
    Recipe("at_least_once.py", 1, None, _lines("shipped.txt"), "shipper"),
    Recipe("exactly_once_sqlite.py", 1, 1, _in_sqlite, "revenue"),
    Recipe("exactly_once_postgresql.py", 1, 1, _in_postgresql, "revenue-shared", uses_postgresql=True),
    Recipe("outbox.py", 1, 1, _lines("stored.txt"), output=TOPIC),
    Recipe("exactly_once_topic.py", 1, 1, _lines("stored.txt"), "pricing", output="priced"),
)


@dataclass(slots=True)
class Report:
    """The counts of one run of the harness."""

    recipe: str
    seed: int
    crashes: Counter[str] = field(default_factory=Counter)
    crashed_at: Counter[str] = field(default_factory=Counter)
    records: int = 0
    never: int = 0
    repeated: int = 0
    wrong: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the counts, with lines in order."""
        return {
            "seed": self.seed,
            "crashes": sum(self.crashes.values()),
            "crashes_by_kind": dict(sorted(self.crashes.items())),
            "crashes_by_line": dict(sorted(self.crashed_at.items(), key=lambda each: each[0])),
            "records": self.records,
            "records_without_effect": self.never,
            "records_with_repeated_effect": self.repeated,
            "wrong": self.wrong,
        }


class Wrong(Exception):
    """A program violated its guarantee, or ended unexpectedly."""


@dataclass(slots=True)
class CrashedProgram:
    """One program, its folder, and its cluster."""

    recipe: Recipe
    report: Report
    folder: Path
    address: str
    environment: dict[str, str]
    rng: random.Random
    calls: Calls
    admin: Admin
    producer: Producer
    program: Path = field(init=False)

    def __post_init__(self) -> None:
        """Write the program to its folder."""
        self.program = write_program(self.recipe.program, self.address, self.folder)

    async def run(self, crashes: int) -> None:
        """Crash the program `crashes` times, run it until its work is done, and count the effects of each record."""
        while sum(self.report.crashes.values()) < crashes:
            await self._give_work()
            await self._crash(self._draw())
        await self._give_work()
        await self._finish()
        await self._judge()

    async def run_beside_ghost(self, line: str) -> str:
        """Pause the program before a line, let another run finish its work, then resume it; return its last output."""
        await self._give_work()
        lines = self.program.read_text(encoding="utf-8").splitlines()
        ghost = start(self.program, self.environment, Crash(CrashKind.PAUSE, 2, only=lines.index(line) + 1))
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                while not (self.folder / NOTE).exists():
                    await asyncio.to_thread(ghost.join, 0.05)
                await self._end_sessions()
                await self._give_work()
                await self._finish()
                assert ghost.pid is not None, "it was started"
                os.kill(ghost.pid, signal.SIGCONT)
                while ghost.exitcode is None:
                    await asyncio.to_thread(ghost.join, 0.05)
        finally:
            await self._end(ghost)
        await self._judge()
        return self._said()

    def _draw(self) -> Crash:
        kind = self.rng.choice([CrashKind.KILL, CrashKind.KILL_SOON, CrashKind.FAILURE])
        return Crash(kind, self.rng.randint(1, LINES_MAX), self.rng.uniform(0, DELAY_SECONDS_MAX))

    async def _give_work(self) -> None:
        orders = [
            json.dumps({"customer": f"customer-{self.report.records + number}", "cents": 1})
            for number in range(BATCHES_A_LIFE * RECORDS_A_BATCH)
        ]
        self.report.records += len(orders)
        if self.recipe.group is None:
            _fill_outbox(self.folder, orders)
            return
        for first in range(0, len(orders), RECORDS_A_BATCH):
            partition = first // RECORDS_A_BATCH % PARTITIONS
            for order in orders[first : first + RECORDS_A_BATCH]:
                await self.producer.send(TOPIC, order.encode(), partition=partition)
            await self.producer.flush()

    async def _crash(self, crash: Crash) -> None:
        (self.folder / NOTE).unlink(missing_ok=True)
        process = start(self.program, self.environment, crash)
        await asyncio.to_thread(process.join, LIFE_SECONDS_MAX)
        note = self.folder / NOTE
        if note.exists():
            self.report.crashes[crash.kind.value] += 1
            self.report.crashed_at[self._source(int(note.read_text(encoding="utf-8")))] += 1
        await self._end(process)

    def _source(self, line: int) -> str:
        return f"{line:3}: {self.program.read_text(encoding='utf-8').splitlines()[line - 1].strip()}"

    async def _end(self, process: ForkServerProcess) -> None:
        process.kill()
        await asyncio.to_thread(process.join)
        process.close()
        await self._end_sessions()

    async def _end_sessions(self) -> None:
        if self.recipe.group is None:
            return
        path = f"/v1/groups/{self.recipe.group}"
        answer = await self.calls.call("GET", path)
        for member in answer.json["members"] if answer.status == 200 else ():
            await self.calls.call("DELETE", f"{path}/members/{member['member_id']}")

    async def _finish(self) -> None:
        """Run the program without a crash until no work is left."""
        process = start(self.program, self.environment, None)
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                while not await self._is_done(process):
                    await asyncio.to_thread(process.join, 0.05)
        except TimeoutError:
            message = f"it did not finish its work: {self._said()}"
            raise Wrong(message) from None
        finally:
            await self._end(process)

    async def _is_done(self, process: ForkServerProcess) -> bool:
        if process.exitcode is not None:
            if self.recipe.group is None and process.exitcode == 0:
                return True
            message = f"it ended by itself: {self._said()}"
            raise Wrong(message)
        if self.recipe.group is None:
            return False
        if self.recipe.at_most is None:
            # The program may repeat effects, so the work is done when every record has an effect, and further effects
            # are allowed.
            return len(self.recipe.effects(self.folder, self.environment)) == self.report.records
        lag = await self.admin.group_lag(self.recipe.group)
        return lag.total_records == 0 and len(lag.lag) == PARTITIONS

    def _said(self) -> str:
        path = self.folder / STDERR
        return path.read_text(encoding="utf-8")[-2000:] if path.exists() else ""

    async def _judge(self) -> None:
        if self.recipe.output is not None:
            await self._write_stored(self.recipe.output)
        effects = self.recipe.effects(self.folder, self.environment)
        counts = {f"customer-{number}": 0 for number in range(self.report.records)}
        if unknown := effects.keys() - counts.keys():
            message = f"effects of records that never existed: {sorted(unknown)[:5]}"
            raise Wrong(message)
        counts |= effects
        self.report.never = sum(count == 0 for count in counts.values())
        self.report.repeated = sum(count > 1 for count in counts.values())
        most = self.recipe.at_most
        for name, count in counts.items():
            if count < self.recipe.at_least or (most is not None and count > most):
                message = f"the order of {name} had its effect {count} times"
                raise Wrong(message)

    async def _write_stored(self, topic: str) -> None:
        """Record the effects of a program that writes to a topic: the committed records in the topic."""
        async with Consumer(self.address, isolation="read_committed") as consumer:
            await consumer.assign(topic=topic)
            until = await consumer.end_offsets()
            names = [
                json.loads(record.value or b"")["customer"] async for record in consumer.records(until=until)
            ]
        (self.folder / "stored.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def _fill_outbox(folder: Path, orders: list[str]) -> None:
    table = "CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT)"
    with closing(sqlite3.connect(folder / "outbox.db")) as database, database:
        database.execute(table)
        database.executemany("INSERT INTO outbox (record) VALUES (?)", [(order,) for order in orders])


@asynccontextmanager
async def _broker(data: Path) -> AsyncIterator[str]:
    # The import is here because the crashed processes import this module too, and each import takes time.
    from fairlead_broker.settings import BrokerSettings
    from fairlead_broker.wiring.start import start_broker

    free = dict.fromkeys(("listen", "peer_listen", "ops_listen"), "127.0.0.1:0")
    running = await start_broker(BrokerSettings.load({"data": data, **free}), log=QUIET)
    try:
        yield f"http://{running.addresses.data}"
    finally:
        await running.stop()


@asynccontextmanager
async def crashed_program(recipe: Recipe, seed: int) -> AsyncIterator[CrashedProgram]:
    """Yield the program with a broker, and a PostgreSQL server if needed, in a separate folder."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-recipe-"))
    try:
        async with AsyncExitStack() as stack:
            environment = stack.enter_context(postgresql_server()) if recipe.uses_postgresql else {}
            address = await stack.enter_async_context(_broker(folder / "broker"))
            admin = await stack.enter_async_context(Admin(address))
            for topic in {TOPIC, recipe.output or TOPIC}:
                await admin.create_topic(topic, partitions=PARTITIONS)
            yield CrashedProgram(
                recipe=recipe,
                report=Report(recipe.program, seed),
                folder=folder,
                address=address,
                environment=environment,
                rng=random.Random(seed),
                calls=await stack.enter_async_context(Calls(address)),
                admin=admin,
                producer=await stack.enter_async_context(Producer(address, linger_ms=0)),
            )
    finally:
        shutil.rmtree(folder)


async def run(recipe: Recipe, crashes: int, seed: int) -> Report:
    """Crash one program `crashes` times; report the first violated guarantee."""
    async with crashed_program(recipe, seed) as crashed:
        try:
            await crashed.run(crashes)
        except Wrong as wrong:
            crashed.report.wrong = str(wrong)
        return crashed.report


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=100, help="of each program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("programs", nargs="*", help="names as on the page; by default all")
    arguments = parser.parse_args()
    chosen = [recipe for recipe in RECIPES if not arguments.programs or recipe.program in arguments.programs]
    # Standard output is reserved for the report.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    reports = {}
    for recipe in chosen:
        report = asyncio.run(run(recipe, arguments.crashes, arguments.seed))
        reports[recipe.program] = report.as_json()
        sys.stderr.write(f"{recipe.program}: {report.wrong or 'kept'}\n")
    sys.stdout.write(json.dumps(reports, indent=1) + "\n")
    return int(any(report["wrong"] for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())
