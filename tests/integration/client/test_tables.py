"""Tables over compacted topics: rebuilt from the start, kept current, and written through."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path

import pytest

from fairlead import Admin, ConsumerBatch, Table
from fairlead.blocking import Table as BlockingTable
from fairlead.errors import ClosedError, TopicNotFoundError

COMPACTED = {"cleanup.policy": "compact"}
PAGE = Path(__file__).parents[3] / "docs/how-to/compaction.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


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
            table.wait_for(table.delete(b"a"), timeout="30s")
            return table.get(b"b"), list(table.items()), list(table), len(table), b"a" in table, table.topic

    assert await asyncio.to_thread(program) == (b"2", [(b"b", b"2")], [b"b"], 1, False, "accounts")
    with pytest.raises(TopicNotFoundError):
        async with Table(bootstrap, "missing"):
            pass
