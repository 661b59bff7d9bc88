"""Two consumer groups that read the flights while they are loaded; one of the four members is killed while it reads.

This module is the part of `make demo` about groups: `board` has three members, which split the six partitions, and
`archive` has one member. Each member is a process that runs departures.py. The module is used by flights.py.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from fairlead import Admin
from fairlead.errors import GroupNotFoundError

MEMBERS = {"board": 3, "archive": 1}
PARTITIONS = 6
KILLED_AFTER_FLIGHTS = 20_000
SECONDS_MAX = 60
PROGRAM = Path(__file__).with_name("departures.py")


@dataclass(slots=True)
class Groups:
    """The members of both groups, and the databases in which they count."""

    bootstrap: str
    folder: Path
    members: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    def start(self) -> None:
        """Start every member."""
        for group, count in MEMBERS.items():
            command = [sys.executable, str(PROGRAM), "--group", group, "--bootstrap", self.bootstrap]
            command += ["--database", str(self._database(group))]
            self.members[group] = [subprocess.Popen(command) for _ in range(count)]

    def stop(self) -> None:
        """End every member."""
        for member in [member for group in self.members.values() for member in group]:
            member.kill()
            member.wait()

    def wait_until_shared_out(self) -> None:
        """Wait until each partition of each group belongs to a member."""
        _wait(lambda: asyncio.run(self._is_shared_out()), "the partitions are not divided among the members")

    async def _is_shared_out(self) -> bool:
        async with Admin(self.bootstrap) as admin:
            for group, members in self.members.items():
                try:
                    found = await admin.describe_group(group)
                except GroupNotFoundError:
                    return False
                running = sum(member.poll() is None for member in members)
                owned = sum(len(each.partitions) for member in found.members for each in member.assignment)
                if (found.state, len(found.members), owned) != ("stable", running, PARTITIONS):
                    return False
        return True

    def kill_one(self) -> int:
        """Kill a member of `board` in the middle of its work; return the number of flights counted so far."""
        _wait(lambda: self.flights("board") >= KILLED_AFTER_FLIGHTS, "the group board does not count")
        counted = self.flights("board")
        self.members["board"][1].kill()
        self.members["board"][1].wait()
        return counted

    def wait_until_read(self) -> None:
        """Wait until no group has records left to read."""
        _wait(lambda: asyncio.run(self._lag()) == 0, "the groups do not reach the end of the topic")

    async def _lag(self) -> int:
        async with Admin(self.bootstrap) as admin:
            return sum([(await admin.group_lag(group)).total_records for group in MEMBERS])

    def flights(self, group: str) -> int:
        """Return the number of flights that a group has counted so far."""
        with closing(sqlite3.connect(self._database(group), timeout=30)) as database:
            tables = "SELECT count(*) FROM sqlite_master WHERE name = 'departures'"
            if database.execute(tables).fetchone() == (0,):
                return 0
            return database.execute("SELECT coalesce(sum(flights), 0) FROM departures").fetchone()[0]

    def result(self, group: str) -> pa.Table:
        """Return the number of flights and the mean delay in minutes of each carrier, as counted by a group."""
        query = "SELECT carrier, flights, 1.0 * minutes / delayed FROM departures ORDER BY carrier"
        with closing(sqlite3.connect(self._database(group), timeout=30)) as database:
            rows = database.execute(query).fetchall()
        return pa.table(
            dict(zip(("carrier", "count_all", "dep_delay_mean"), zip(*rows, strict=True), strict=True))
        )

    def _database(self, group: str) -> Path:
        return self.folder / f"{group}.db"


@contextmanager
def two_groups(bootstrap: str) -> Iterator[Groups]:
    """Run the members of both groups until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder:
        groups = Groups(bootstrap, Path(folder))
        try:
            groups.start()
            yield groups
        finally:
            groups.stop()


def _wait(is_done: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_done():
        if time.monotonic() > deadline:
            raise SystemExit(f"{complaint} after {SECONDS_MAX} s")
        time.sleep(0.05)
