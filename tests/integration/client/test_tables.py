"""Tables over compacted topics: rebuilt from the start, kept current, and written through."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from fairlead import Admin, Consumer, ConsumerBatch, Producer, Table
from fairlead.blocking import Producer as BlockingProducer
from fairlead.blocking import Table as BlockingTable
from fairlead.errors import ClosedError, TopicNotFoundError
from waiting import pause, pause_blocking

COMPACTED = {"cleanup.policy": "compact"}
PAGE = Path(__file__).parents[3] / "docs/how-to/compaction.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)
STORE = re.compile(
    r"```python\n(?P<code>import sys\n.*?)```.*?printf '(?P<commands>.*?)'.*?```text\n(?P<output>.*?)```",
    re.DOTALL,
)


async def test_the_program_of_the_page_prints_what_the_page_says(bootstrap: str, admin: Admin) -> None:
    """The page's program prints the table that the page's commands have written, and its own write."""
    await admin.create_topic("accounts", config=COMPACTED)
    async with Table(bootstrap, "accounts") as table:
        for key, value in ((b"ann", b"10"), (b"ben", b"20"), (b"ann", b"15")):
            await table.put(key, value)
        await table.delete(b"ben")
    example = EXAMPLE.search(PAGE.read_text(encoding="utf-8"))
    assert example is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = example["code"].replace("http://127.0.0.1:9520", bootstrap)
        await asyncio.to_thread(exec, compile(code, str(PAGE), "exec"), {})

    assert printed.getvalue() == example["output"]


async def test_a_store_whose_program_is_killed_continues_from_offset_0(
    bootstrap: str, admin: Admin, tmp_path: Path
) -> None:
    """The page's key-value store has every answered write again in a new process, after a kill in the middle of writes.

    The only state that the processes share is the topic, whose replaced records are removed before the new process
    starts: the new store is that of the log before the cleaning.
    """
    await admin.create_topic("accounts", config=COMPACTED)
    page = STORE.search(PAGE.read_text(encoding="utf-8"))
    assert page is not None
    program = tmp_path / "store.py"
    program.write_text(page["code"], encoding="utf-8")
    answered = {b"k%d" % number: b"%d" % number for number in range(20)}
    async with _store(program, bootstrap) as store:
        commands = page["commands"].encode().decode("unicode_escape").encode()
        printed = b"0 keys\n" + (await store.communicate(commands))[0]
    async with _store(program, bootstrap) as killed:
        assert (
            await _asked(killed, *(b"set " + b" ".join(each) for each in answered.items())) == [b"done"] * 20
        )
        assert killed.stdin is not None
        killed.stdin.write(b"".join(b"set %b 100\n" % key for key in answered))
        killed.kill()
    full = await _records(bootstrap)
    while await _cleaned(admin) > max(full) + 1:
        # A write of the killed process arrived after the reading.
        full |= await _records(bootstrap)
    left = await _records(bootstrap)
    newest = dict(full.values())
    async with _store(program, bootstrap, keys=20) as store:
        found = dict(zip(answered, await _asked(store, *(b"get " + key for key in answered)), strict=True))
        assert await _asked(store, b"delete k0", b"get k0", b"set k0 3", b"get k0") == [
            b"done",
            b"none",
            b"done",
            b"3",
        ]

    assert printed.decode() == page["output"]
    assert [key for key, value in found.items() if value not in {answered[key], b"100"}] == []
    assert len(left) < len(full)
    assert left.items() <= full.items()
    assert dict(left.values()) == newest
    assert found == {key: value for key, value in newest.items() if value is not None}


@contextlib.asynccontextmanager
async def _store(program: Path, bootstrap: str, keys: int = 0) -> AsyncIterator[Process]:
    """Run the key-value store, which begins with this number of keys, and kill it at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), bootstrap, stdin=PIPE, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"%d keys\n" % keys
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _records(bootstrap: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return the key and value of each record of the topic, by offset."""
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="accounts")
        return {
            record.offset: (record.key, record.value)
            async for batch in consumer.batches(await consumer.end_offsets())
            for record in batch
        }


async def _cleaned(admin: Admin) -> int:
    """Clean the topic up to its end, and return the end."""
    await admin.clean_partition("accounts", 0)
    replicas = (await admin.describe_cleaning("accounts", 0)).replicas
    while replicas[0].cleaned_offset != replicas[0].log_end_offset:
        await pause(0.05)
        replicas = (await admin.describe_cleaning("accounts", 0)).replicas
    assert replicas[0].log_end_offset is not None
    return replicas[0].log_end_offset


async def _asked(store: Process, *commands: bytes) -> list[bytes]:
    """Send commands to the key-value store, and return its answers."""
    assert store.stdin is not None
    assert store.stdout is not None
    store.stdin.write(b"".join(command + b"\n" for command in commands))
    return [(await store.stdout.readline()).strip() for _ in commands]


async def test_a_table_is_rebuilt_from_the_start_of_its_topic(bootstrap: str, admin: Admin) -> None:
    """A table has the newest value of each key after its program restarts, and follows the writes of other programs."""
    await admin.create_topic("accounts", partitions=3, config=COMPACTED)
    changes: list[int] = []

    def changed(batch: ConsumerBatch) -> None:
        """Count the records that are passed."""
        changes.append(len(batch))

    async with (
        Table(bootstrap, "accounts") as table,
        Table(bootstrap, "accounts", on_change=changed) as other,
    ):
        for number in range(30):
            await table.put(b"k%d" % (number % 10), b"%d" % number)
        written = await table.delete(b"k3")
        await table.wait_for(written, timeout="30s")
        await other.wait_for(written, timeout="30s")
        live = dict(table.items())
    async with Table(bootstrap, "accounts") as again:
        await again.caught_up("30s")

        assert dict(again.items()) == live
    assert live == {b"k%d" % number: b"%d" % (20 + number) for number in range(10) if number != 3}
    assert (table.get(b"k4"), table.get(b"k3"), table.get(b"k3", b"none")) == (b"24", None, b"none")
    assert (len(table), b"k4" in table, b"k3" in table, sorted(table)) == (9, True, False, sorted(live))
    assert sum(changes) > 0
    with pytest.raises(ClosedError):
        await table.caught_up()


async def test_a_program_waits_for_a_write_of_another_program(bootstrap: str, admin: Admin) -> None:
    """A table waits for a partition and an offset, and a wait for an offset beyond the end ends with its timeout."""
    await admin.create_topic("accounts", partitions=2, config=COMPACTED)
    found: list[bytes | None] = []
    async with Table(bootstrap, "accounts") as table, Producer(bootstrap) as producer:
        for partition, value in ((0, b"1"), (1, b"2"), (1, b"3")):
            record = await producer.send_and_wait("accounts", value, b"p%d" % partition, partition=partition)
            await table.wait_for((partition, record.offset), timeout="30s")
            found.append(table.get(b"p%d" % partition))
        with pytest.raises(TimeoutError):
            await table.wait_for((0, 1), timeout="100ms")

    assert found == [b"1", b"2", b"3"]


async def test_threads_never_see_a_deleted_key_with_a_null_value(bootstrap: str, admin: Admin) -> None:
    """While batches of deletes are stored, a thread sees each key with a value, or does not see the key."""
    await admin.create_topic("accounts", config=COMPACTED)
    keys = [b"k%d" % number for number in range(20_000)]
    counts, nulls, ended = [0, 0], 0, threading.Event()

    def read(table: BlockingTable) -> None:
        """Count the looks at a key and its null values, until the end of the test."""
        nonlocal nulls
        while not ended.is_set():
            value = table.get(keys[-1], b"none")
            nulls += value is None
            counts[value == b"none"] += 1
            pause_blocking(1e-4)

    def program() -> list[int]:
        """Write all keys and delete them again, while a thread reads."""
        sizes: list[int] = []
        with BlockingTable(bootstrap, "accounts") as table, BlockingProducer(bootstrap) as producer:
            reader = threading.Thread(target=read, args=(table,))
            reader.start()
            try:
                for value in (b"1", None) * 3:
                    values = pa.array([value] * len(keys), pa.binary())
                    [batch] = producer.send_batch("accounts", pa.table({"key": keys, "value": values}))
                    table.wait_for((0, batch.result().last_offset), timeout="30s")
                    sizes.append(len(table))
            finally:
                ended.set()
                reader.join()
        return sizes

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        sizes = await asyncio.to_thread(program)
    finally:
        sys.setswitchinterval(interval)

    assert sizes == [len(keys), 0] * 3
    assert min(counts) > 0
    assert nulls == 0


async def test_a_table_without_values_only_hands_over_its_changes(bootstrap: str, admin: Admin) -> None:
    """A table without values calls its function with every batch, and an exception in the function ends the reading."""
    await admin.create_topic("accounts", config=COMPACTED)
    keys: list[bytes | None] = []

    def changed(batch: ConsumerBatch) -> None:
        """Store the keys, and fail at a poisoned key."""
        keys.extend(batch.keys)
        if b"poison" in batch.keys:
            raise ArithmeticError

    async with Table(bootstrap, "accounts", on_change=changed, keeps_values=False) as table:
        await table.wait_for(await table.put(b"a", b"1"), timeout="30s")
        nothing = len(table)
        poisoned = await table.put(b"poison", b"1")
        with pytest.raises(ArithmeticError):
            await table.wait_for(poisoned, timeout="30s")

    assert (nothing, keys) == (0, [b"a", b"poison"])


async def test_a_blocking_table_has_the_same_words(bootstrap: str, admin: Admin) -> None:
    """A blocking table can be read, written and waited for without an event loop; its error names a missing topic."""
    await admin.create_topic("accounts", config=COMPACTED)

    def program() -> tuple[bytes | None, list[tuple[bytes, bytes]], list[bytes], int, bool, str]:
        """Use the table in a thread, as a program without an event loop does."""
        with BlockingTable(bootstrap, "accounts") as table:
            assert table.caught_up("30s").is_caught_up
            table.put(b"a", b"1")
            table.put(b"b", b"2")
            deleted = table.delete(b"a")
            table.wait_for(deleted, timeout="30s")
            table.wait_for((deleted.partition, deleted.offset))
            return table.get(b"b"), list(table.items()), list(table), len(table), b"a" in table, table.topic

    assert await asyncio.to_thread(program) == (b"2", [(b"b", b"2")], [b"b"], 1, False, "accounts")
    with pytest.raises(TopicNotFoundError):
        async with Table(bootstrap, "missing"):
            pass
