from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fairlead_api.identifiers import Revision
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import (
    Compacted,
    CoordinationClosed,
    CoordinationUnavailable,
    DeleteEvent,
    LeaseNotFound,
    UnknownOutcome,
    WatchBatch,
)
from fairlead_broker.coordination.store_file import StoreDamaged, StoreHeld, StoreInaccessible, StoreTooNew
from fairlead_broker.registry.store_writes import Delete, Get, Put
from refusals import missing, raises


def closed_store_edited(path: Path, *statements: str) -> None:
    """Change the file of a closed store with SQLite statements."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def contents(path: Path) -> bytes:
    """Read a file."""
    return path.read_bytes()


def overwrite(path: Path, data: bytes) -> None:
    """Write a file."""
    path.write_bytes(data)


async def test_everything_is_there_after_a_restart(path: Path, clock: Any) -> None:
    """Keys, revisions and history of the store are the same after a restart."""
    async with await EmbeddedCoordination.open(path, clock) as store:
        first = await store.transact((), (Put("/a", b"1"), Put("/b", b"1")))
        last = await store.transact((), (Put("/a", b"2"), Delete("/b")))
    async with await EmbeddedCoordination.open(path, clock) as store:
        now = await store.list("/")
        then = await store.list("/", revision=first.revision)
        written = await store.transact((), (Put("/c", b"3"),))

    assert [(item.key, item.value, item.create_revision) for item in now.items] == [
        ("/a", b"2", first.revision)
    ]
    assert [(item.key, item.value) for item in then.items] == [("/a", b"1"), ("/b", b"1")]
    assert (now.revision, written.revision) == (last.revision, last.revision + 1)


async def test_revisions_do_not_go_back_when_the_last_change_is_compacted(path: Path, clock: Any) -> None:
    """A store whose last revision was a compacted deletion continues after that revision."""
    async with await EmbeddedCoordination.open(path, clock) as store:
        await store.transact((), (Put("/a", b"1"),))
        last = await store.transact((), (Delete("/a"),))
        await store.compact(last.revision)
    async with await EmbeddedCoordination.open(path, clock) as store:
        page = await store.list("/")
        with pytest.raises(Compacted):
            await store.list("/", revision=Revision(last.revision - 1))

    assert (page.items, page.revision) == ((), last.revision)


async def test_leases_end_with_the_process(path: Path, clock: Any) -> None:
    """Leases end with the process: the next start deletes all their keys in one revision."""
    async with await EmbeddedCoordination.open(path, clock) as store:
        leases = [await store.grant_lease(60), await store.grant_lease(60)]
        await store.transact((), (Put("/a", b"", leases[0].lease_id), Put("/b", b"", leases[1].lease_id)))
        last = await store.transact((), (Put("/c", b""), Put("/was-leased", b"", leases[0].lease_id)))
        last = await store.transact((), (Put("/was-leased", b"still here"),))
    async with await EmbeddedCoordination.open(path, clock) as store:
        page = await store.list("/")
        batch = await anext(store.watch("/", Revision(last.revision + 1)))
        with pytest.raises(LeaseNotFound):
            await store.keep_alive(leases[0])
        newer = await store.grant_lease(60)

    assert [item.key for item in page.items] == ["/c", "/was-leased"]
    assert batch == WatchBatch(Revision(last.revision + 1), (DeleteEvent("/a"), DeleteEvent("/b")))
    assert newer.lease_id not in {lease.lease_id for lease in leases}


async def test_a_store_is_open_once(path: Path, clock: Any, store: EmbeddedCoordination) -> None:
    """A second attempt to open an embedded store is refused; the error names the process that uses the store."""
    with raises(StoreHeld, os.getpid()):
        await EmbeddedCoordination.open(path, clock)

    assert (await store.transact((), (Put("/a", b""),))).succeeded


async def test_only_the_broker_reads_its_store(path: Path, store: EmbeddedCoordination) -> None:
    """The store's files are readable only by their owner."""
    files = [path, path.with_name(f"{path.name}-wal")]

    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 2


async def test_another_process_is_kept_out(path: Path, store: EmbeddedCoordination) -> None:
    """The lock of the store also prevents other processes from opening it."""
    await store.transact((), (Put("/a", b""),))
    program = (
        "import asyncio, pathlib, sys\n"
        "from fairlead_broker.clock import SystemClock\n"
        "from fairlead_broker.coordination.embedded import EmbeddedCoordination\n"
        "asyncio.run(EmbeddedCoordination.open(pathlib.Path(sys.argv[1]), SystemClock()))\n"
    )
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode != 0
    assert missing(ended.stderr, os.getpid()) == []


async def test_a_killed_process_leaves_what_was_answered(path: Path, clock: Any) -> None:
    """A killed process leaves every answered transaction complete in the store, and no lock."""
    program = (
        "import asyncio, pathlib, sys\n"
        "from fairlead_broker.clock import SystemClock\n"
        "from fairlead_broker.coordination.embedded import EmbeddedCoordination\n"
        "from fairlead_broker.registry.store_writes import Put\n"
        "async def main():\n"
        "    store = await EmbeddedCoordination.open(pathlib.Path(sys.argv[1]), SystemClock())\n"
        "    for n in range(1000000):\n"
        "        await store.transact((), (Put(f'/a/{n:06}', b''), Put(f'/b/{n:06}', b'')))\n"
        "        print(n, flush=True)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    answered = [int(await process.stdout.readline()) for _ in range(20)]
    process.kill()
    answered += [int(line) for line in (await process.stdout.read()).split(b"\n")[:-1]]
    await process.wait()
    async with await EmbeddedCoordination.open(path, clock) as store:
        keys = {item.key for item in (await store.list("/")).items}

    assert {f"/a/{n:06}" for n in answered} | {f"/b/{n:06}" for n in answered} <= keys
    assert {key.replace("/a/", "/b/") for key in keys} <= keys, "no transaction is written in part"


async def test_a_file_of_something_else_is_refused(path: Path, clock: Any) -> None:
    """A file that is not a store is refused and stays unchanged, and the error names the next step."""
    noise = path.with_name("noise.sqlite")
    overwrite(noise, b"no database at all" * 1000)
    with pytest.raises(StoreDamaged) as refusal:
        await EmbeddedCoordination.open(noise, clock)
    closed_store_edited(path, "CREATE TABLE history (mine TEXT)")
    before = contents(path)
    with pytest.raises(StoreDamaged):
        await EmbeddedCoordination.open(path, clock)

    assert missing(refusal.value, "noise.sqlite") == []
    assert contents(path) == before


async def test_a_store_of_a_later_release_is_refused(path: Path, clock: Any) -> None:
    """A store with a later format is refused."""
    async with await EmbeddedCoordination.open(path, clock):
        pass
    closed_store_edited(path, "PRAGMA user_version = 2")
    with raises(StoreTooNew, 2, 1):
        await EmbeddedCoordination.open(path, clock)


async def test_a_damaged_page_is_found_at_opening(path: Path, clock: Any) -> None:
    """Damaged pages of the store are found when it is opened."""
    async with await EmbeddedCoordination.open(path, clock) as store:
        for n in range(200):
            await store.transact((), (Put(f"/k/{n}", bytes(500)),))
    data = bytearray(contents(path))
    for at in range(2 * 4096, len(data), 3 * 4096):
        data[at : at + 64] = b"\xff" * 64
    overwrite(path, bytes(data))
    with pytest.raises(StoreDamaged):
        await EmbeddedCoordination.open(path, clock)


async def test_a_changed_value_is_found_when_it_is_read(path: Path, clock: Any) -> None:
    """A changed value fails its checksum when it is read, and the store serves nothing afterwards."""
    async with await EmbeddedCoordination.open(path, clock) as store:
        await store.transact((), (Put("/a", b"honest"), Put("/b", b"b")))
    closed_store_edited(path, "UPDATE history SET value = x'6c696172' WHERE key = '/a'")
    async with await EmbeddedCoordination.open(path, clock) as store:
        with raises(StoreDamaged, "/a", 2):
            await store.list("/")
        with pytest.raises(CoordinationUnavailable):
            await store.transact((), (Put("/b", b"2"),))


async def test_a_folder_that_does_not_exist_is_refused(path: Path, clock: Any) -> None:
    """A store in a missing folder is refused, and no folder is created."""
    with pytest.raises(StoreInaccessible):
        await EmbeddedCoordination.open(path.parent / "missing" / path.name, clock)


class FailingConnection:
    """A connection that fails at a statement, as SQLite does on a disk error."""

    def __init__(self, inner: sqlite3.Connection, statement: str, code: int) -> None:
        """Make the given SQL statement fail every time."""
        self.inner = inner
        self.statement = statement
        self.code = code

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        """Execute a statement, or raise the error instead."""
        if statement.startswith(self.statement):
            error = sqlite3.OperationalError("the disk")
            error.sqlite_errorcode = self.code
            raise error
        return self.inner.execute(statement, *parameters)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the real connection."""
        return getattr(self.inner, name)


async def fail(store: EmbeddedCoordination, statement: str, code: int) -> None:
    """Make a given SQL statement fail from now on."""
    history = store._store.history

    def replace() -> None:
        history._connection = FailingConnection(history._connection, statement, code)  # type: ignore[assignment]

    await store._store.run(replace)


async def heal(store: EmbeddedCoordination) -> None:
    """Let every SQL statement succeed again."""
    history = store._store.history
    await store._store.run(setattr, history, "_connection", history._connection.inner)  # type: ignore[attr-defined]


async def test_a_failed_commit_is_an_unknown_outcome(store: EmbeddedCoordination) -> None:
    """A failed commit has an unknown outcome, and the store serves nothing after it."""
    await store.transact((), (Put("/a", b"1"),))
    await fail(store, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC)
    with raises(UnknownOutcome, "disk"):
        await store.transact((), (Put("/a", b"2"),))
    await heal(store)
    for call in (store.list("/"), store.transact((), (Get("/a"),)), store.compact(Revision(2))):
        with pytest.raises(CoordinationUnavailable):
            await call


@pytest.mark.parametrize("statement", ["COMMIT", "BEGIN"])
async def test_a_full_disk_is_a_definite_failure_and_passes(
    store: EmbeddedCoordination, statement: str
) -> None:
    """A transaction on a full disk has definitely failed.

    Reads from a full disk continue, and writes succeed once there is space.
    """
    before = await store.transact((), (Put("/a", b"1"),))
    await fail(store, statement, sqlite3.SQLITE_FULL)
    with raises(CoordinationUnavailable, "disk"):
        await store.transact((), (Put("/a", b"2"),))
    during = await store.list("/")
    await heal(store)
    after = await store.transact((), (Put("/a", b"3"),))

    assert [(item.value, item.mod_revision) for item in during.items] == [(b"1", before.revision)]
    assert after.revision == before.revision + 1


async def test_a_store_needs_no_descriptors_after_its_opening(store: EmbeddedCoordination) -> None:
    """Large transactions and compactions succeed while the process cannot open any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    changes = [tuple(Put(f"/{n}", os.urandom(4000)) for n in range(100)) for _ in range(3)]
    revision = Revision(0)
    await store.transact((), changes[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for change in changes:
            revision = (await store.transact((), change)).revision
        await store.compact(revision)
        deleted = await store.transact((), tuple(Delete(f"/{n}") for n in range(100)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert deleted.revision == revision + 1
    assert (await store.list("/")).items == ()


async def test_a_failed_write_before_the_commit_is_definite(store: EmbeddedCoordination) -> None:
    """A write that fails before the commit has definitely failed, and the store serves nothing after it."""
    await fail(store, "BEGIN", sqlite3.SQLITE_IOERR)
    with pytest.raises(CoordinationUnavailable):
        await store.transact((), (Put("/a", b"2"),))
    await heal(store)
    with pytest.raises(CoordinationUnavailable):
        await store.list("/")


async def test_the_stores_own_timer_ends_leases(path: Path) -> None:
    """The store's own timer ends leases, without any call."""
    async with await EmbeddedCoordination.open(path, SystemClock()) as store:
        lease = await store.grant_lease(1)
        kept = await store.grant_lease(60)
        put = await store.transact((), (Put("/a", b"", lease.lease_id), Put("/b", b"", kept.lease_id)))
        async with asyncio.timeout(10):
            batch = await anext(store.watch("/", Revision(put.revision + 1)))

    assert batch.events == (DeleteEvent("/a"),)


async def test_leases_of_a_failed_store_do_not_end(path: Path) -> None:
    """Leases of a failed store do not end, and the failure of the timer is logged."""
    async with await EmbeddedCoordination.open(path, SystemClock()) as store:
        lease = await store.grant_lease(1)
        await store.transact((), (Put("/a", b"", lease.lease_id),))
        await fail(store, "COMMIT", sqlite3.SQLITE_IOERR)
        with pytest.raises(UnknownOutcome):
            await store.transact((), (Put("/b", b""),))
        with capture_logs() as logs:
            async with asyncio.timeout(10):
                while not logs:
                    await store._store.run(int)
        await heal(store)

    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("leases not expired", "warning")]


@pytest.mark.slow
async def test_leases_that_a_full_disk_kept_end_when_there_is_room(path: Path) -> None:
    """Leases that could not end on a full disk end once there is space, because the timer tries again."""
    async with await EmbeddedCoordination.open(path, SystemClock()) as store:
        lease = await store.grant_lease(1)
        put = await store.transact((), (Put("/a", b"", lease.lease_id),))
        await fail(store, "BEGIN", sqlite3.SQLITE_FULL)
        with capture_logs() as logs:
            async with asyncio.timeout(10):
                while not logs:
                    await store._store.run(int)
        await heal(store)
        async with asyncio.timeout(10):
            batch = await anext(store.watch("/", Revision(put.revision + 1)))

    assert batch.events == (DeleteEvent("/a"),)


@pytest.mark.slow
async def test_a_process_that_stood_still_does_not_lose_its_leases(path: Path) -> None:
    """A process that was suspended keeps its leases: a late timer extends them by the lost time."""
    program = (
        "import asyncio, os, pathlib, signal, subprocess, sys\n"
        "from fairlead_broker.clock import SystemClock\n"
        "from fairlead_broker.coordination.embedded import EmbeddedCoordination\n"
        "from fairlead_broker.registry.store_writes import Put\n"
        "async def main():\n"
        "    store = await EmbeddedCoordination.open(pathlib.Path(sys.argv[1]), SystemClock())\n"
        "    lease = await store.grant_lease(1)\n"
        "    await store.transact((), (Put('/a', b'', lease.lease_id),))\n"
        "    subprocess.Popen(['sh', '-c', f'sleep 2.5; kill -CONT {os.getpid()}'])\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    await asyncio.sleep(0.2)\n"
        "    await store.keep_alive(lease)\n"
        "    print([item.key for item in (await store.list('/')).items])\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    printed, _ = await process.communicate()

    assert printed == b"['/a']\n"


async def test_a_keeper_held_up_with_the_timer_of_its_lease_keeps_it(path: Path, clock: Any) -> None:
    """A keep-alive that was delayed together with the lease's timer runs first and keeps the lease."""
    async with await EmbeddedCoordination.open(path, clock) as store:
        lease = await store.grant_lease(1)
        await store.transact((), (Put("/a", b"", lease.lease_id),))
        due = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.3, due.set_result, None)

        async def keep() -> None:
            await due
            await store.keep_alive(lease)

        keeper = asyncio.create_task(keep())
        # The delay is too short to count as a suspended process.
        clock.seconds += 1.2
        time.sleep(1.2)  # noqa: ASYNC251, TID251 - the test needs a blocked loop
        await keeper
        page = await store.list("/")

    assert [item.key for item in page.items] == ["/a"]


async def test_a_cancelled_call_does_not_hold_up_the_next(store: EmbeddedCoordination) -> None:
    """A cancelled call does not delay the next one."""
    calls = [asyncio.create_task(store.transact((), (Put(f"/{n}", b""),))) for n in range(20)]
    await asyncio.wait([calls[0]])
    for call in calls[1:]:
        call.cancel()
    await asyncio.wait(calls)
    written = await store.transact((), (Put("/last", b""),))
    keys = [item.key for item in (await store.list("/")).items]

    assert written.succeeded
    assert {"/0", "/last"} <= set(keys)
    assert len(keys) == written.revision - 1


async def test_the_file_closes_with_the_last_client(path: Path, clock: Any) -> None:
    """The store's file is closed and unlocked when the last client of the store is closed."""
    first = await EmbeddedCoordination.open(path, clock)
    second = first.connect()
    await first.close()
    with pytest.raises(StoreHeld):
        await EmbeddedCoordination.open(path, clock)
    await second.transact((), (Put("/a", b""),))
    await second.close()
    with pytest.raises(CoordinationClosed):
        second.connect()
    async with await EmbeddedCoordination.open(path, clock) as third:
        page = await third.list("/")

    assert [item.key for item in page.items] == ["/a"]


async def test_compaction_gives_the_space_back(path: Path, clock: Any) -> None:
    """Compaction frees the space of a key's earlier values."""
    async with await EmbeddedCoordination.open(path, clock) as store:
        for _ in range(20):
            results = [await store.transact((), (Put("/a", bytes(50_000)),)) for _ in range(10)]
            await store.compact(results[-1].revision)

    assert len(contents(path)) < 2_000_000
