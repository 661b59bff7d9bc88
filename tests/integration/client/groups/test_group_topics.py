"""Warnings of a group member whose topics do not exist, against a real broker."""

from __future__ import annotations

import asyncio
import logging

import pytest

from fairlead import Admin, Consumer, Producer
from fairlead.errors import ProcessingTimeoutError
from refusals import missing
from waiting import until

MISSING = "do not exist"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about missing topics."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "fairlead" and record.levelno == logging.WARNING and MISSING in record.getMessage()
    ]


async def test_missing_topics_are_named(
    bootstrap: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing topics are named in one warning with the group, without existing topics."""
    await admin.create_topic("flights", partitions=1)
    async with Consumer(bootstrap, group="z2", topics=["nope-y", "flights", "nope-x"]):
        await until(lambda: bool(warnings_of(caplog)))

    assert [missing(line, "z2", "nope-x", "nope-y", "flights") for line in warnings_of(caplog)] == [
        ["flights"]
    ]


async def test_a_missing_topic_is_named_once_and_read_once_it_exists(
    bootstrap: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing topic causes only one warning, even after further joins, and is read after its creation."""
    async with Consumer(
        bootstrap, group="z2", topics=["nope-x", "late"], processing_timeout="2s"
    ) as consumer:
        await until(lambda: bool(warnings_of(caplog)))
        await until(lambda: consumer.membership.state == "left")
        with pytest.raises(ProcessingTimeoutError):
            await consumer.next_batch(timeout="20s")
        taking = asyncio.create_task(consumer.next_batch(timeout="20s"))
        await until(lambda: consumer.membership.state == "stable")
        await admin.create_topic("late", partitions=1)
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait("late", b"a")
        batch = await taking

    assert batch is not None
    assert batch.topic == "late"
    assert len(warnings_of(caplog)) == 1


async def test_a_member_without_a_partition_warns_of_no_existing_topic(
    bootstrap: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """A member without a partition logs a warning only about a missing topic, not about an existing topic."""
    await admin.create_topic("flights", partitions=1)
    async with Consumer(bootstrap, group="z2", topics="flights") as first:
        await until(lambda: bool(first.assignment))
        async with Consumer(bootstrap, group="z2", topics=["flights", "nope-x"]) as second:
            await until(lambda: bool(warnings_of(caplog)))
            assert len(first.assignment) + len(second.assignment) == 1

    assert [missing(line, "z2", "nope-x", "flights") for line in warnings_of(caplog)] == [["flights"]]
