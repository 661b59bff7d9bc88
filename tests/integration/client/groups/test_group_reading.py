"""`fairlead consume -g` after the group has removed its member."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from fairlead import Admin, ConsumerBatch, Producer
from fairlead.cli.group_reading import GroupReading


@pytest.mark.slow
async def test_a_removed_member_continues_printing(bootstrap: str, admin: Admin) -> None:
    """A removed member, whose commit is refused before a heartbeat, joins again and continues printing."""
    await admin.create_topic("flights", partitions=1)
    printed: list[bytes | None] = []
    came = asyncio.Event()

    def print_batch(batch: ConsumerBatch, left: int | None) -> int:
        """Record the values of the batch."""
        records = list(islice(batch, left))
        printed.extend(record.value for record in records)
        came.set()
        return records[-1].offset + 1

    reading = GroupReading(bootstrap, "g", "flights", "earliest", print_batch)
    async with Producer(bootstrap) as producer, asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(reading.run(count=3, exit_at_end=False))
        await producer.send_and_wait("flights", b"1")
        await came.wait()
        session = reading._consumer._session
        assert session is not None
        await session._calls.leave(static=False)
        await producer.send_and_wait("flights", b"2")

    # Uncommitted records are printed again.
    assert printed in ([b"1", b"2", b"1"], [b"1", b"1", b"2"])
