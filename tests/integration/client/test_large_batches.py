"""Batches above their topic's limit: they are split until they fit, and each record is stored once and in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from fairlead import Admin, Consumer, Producer, blocking
from fairlead.errors import BatchTooLargeError, BodyTooLargeError
from fairlead_broker.settings import BrokerSettings, Endpoint, Limits
from fairlead_broker.wiring.start import start_broker
from refusals import raises

MIB: Final = 2**20
LIMIT: Final = 20_000
TEXTS: Final = [b"%0100d" % number for number in range(3000)]
END: Final = b"end"
GIANT: Final = b"x" * (LIMIT + 1)


async def stored(bootstrap: str, count: int) -> list[bytes | None]:
    """Wait for `count` values in partition 0 and return them with all later values."""
    async with Consumer(bootstrap) as consumer, Producer(bootstrap) as producer:
        await consumer.assign(topic="flights")
        values = await _read(consumer, [], count)
        await producer.send_and_wait("flights", END)
        values = await _read(consumer, values, count + 1)
    assert values.pop() == END
    return values


async def _read(consumer: Consumer, values: list[bytes | None], count: int) -> list[bytes | None]:
    while len(values) < count:
        batch = await consumer.next_batch(timeout="10s")
        assert batch is not None, f"{len(values)} records of {count}"
        values += batch.values
    return values


async def limit(admin: Admin, bytes_max: int) -> None:
    """Limit the batches of the topic to `bytes_max`."""
    await admin.alter_topic("flights", config={"max.message.bytes": bytes_max})


@pytest.fixture(
    params=["idempotent", pytest.param("named", marks=pytest.mark.scenario), "plain", "unacknowledged"]
)
def kind(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return the settings for one kind of producer."""
    kinds: dict[str, dict[str, object]] = {
        "idempotent": {},
        "named": {"name": "loader"},
        "plain": {"idempotence": False},
        "unacknowledged": {"acks": 0},
    }
    return kinds[request.param]


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_records_of_a_large_batch_are_stored_in_smaller_ones(
    bootstrap: str, admin: Admin, kind: dict[str, object], compression: str
) -> None:
    """Records of a batch that is split have their own offsets, with several batches in flight."""
    await admin.create_topic(
        "flights", config={"max.message.bytes": LIMIT if compression == "none" else 4000}
    )
    async with Producer(bootstrap, batch_bytes=50_000, compression=compression, **kind) as producer:
        deliveries = [await producer.send("flights", text) for text in TEXTS]
        offsets = [(await delivery).offset for delivery in deliveries]

    assert await stored(bootstrap, len(TEXTS)) == TEXTS
    assert offsets == ([-1] * len(TEXTS) if "acks" in kind else list(range(len(TEXTS))))


async def test_a_table_is_stored_in_smaller_batches_too(
    bootstrap: str, admin: Admin, kind: dict[str, object]
) -> None:
    """A table that is split has one delivery with the offsets of all its batches."""
    await admin.create_topic("flights", config={"max.message.bytes": LIMIT})
    async with Producer(bootstrap, columnar_batch_bytes=100_000, **kind) as producer:
        deliveries = await producer.send_batch("flights", pa.table({"value": TEXTS}))
        found = [await delivery for delivery in deliveries]

    assert await stored(bootstrap, len(TEXTS)) == TEXTS
    assert len(found) < 8
    assert sum(metadata.record_count for metadata in found) == len(TEXTS)
    if "acks" not in kind:
        ends = [metadata.last_offset + 1 for metadata in found]
        assert [metadata.base_offset for metadata in found] == [0, *ends[:-1]]
        assert ends[-1] == len(TEXTS)


async def test_a_record_that_is_too_large_by_itself_fails_alone(
    bootstrap: str, admin: Admin, kind: dict[str, object]
) -> None:
    """A record larger than the limit fails with an error that names topic, size and limit; all others are stored."""
    await admin.create_topic("flights", config={"max.message.bytes": LIMIT})
    giants = (10, 11, 700, 2999)
    async with Producer(bootstrap, batch_bytes=50_000, **kind) as producer:
        deliveries = [
            await producer.send("flights", GIANT if row in giants else text) for row, text in enumerate(TEXTS)
        ]
        for row, delivery in enumerate(deliveries):
            if row in giants:
                with raises(BatchTooLargeError, "flights-0", 20000):
                    await delivery
            else:
                await delivery
        await producer.send_and_wait("flights", b"after")

    assert await stored(bootstrap, len(TEXTS) - 3) == [
        *(text for row, text in enumerate(TEXTS) if row not in giants), b"after",
    ]  # fmt: skip


async def test_a_table_with_a_large_row_reports_its_other_rows(bootstrap: str, admin: Admin) -> None:
    """A table with a large row fails with an error that reports its other rows as stored."""
    await admin.create_topic("flights", config={"max.message.bytes": LIMIT})
    async with Producer(bootstrap) as producer:
        [delivery] = await producer.send_batch(
            "flights", pa.table({"value": [*TEXTS[:300], GIANT, *TEXTS[300:600]]})
        )
        with raises(BatchTooLargeError, 1, 601) as raised:
            await delivery

    assert raised.value.side_effect == "maybe"
    assert raised.value.data == {"limit_bytes": LIMIT}
    assert await stored(bootstrap, 600) == TEXTS[:600]


async def test_a_limit_that_is_lowered_under_way_loses_and_repeats_nothing(
    bootstrap: str, admin: Admin, kind: dict[str, object]
) -> None:
    """Records are stored once while the limit is lowered in steps, and do not wait for a refused batch."""
    await admin.create_topic("flights")
    async with Producer(bootstrap, batch_bytes=50_000, linger_ms=1, **kind) as producer:
        sending = asyncio.create_task(_send_all(producer))
        for bytes_max in (40_000, 20_000, 1000, 100_000):
            await limit(admin, bytes_max)
        await sending
        await producer.flush()

    assert await stored(bootstrap, len(TEXTS)) == TEXTS


async def _send_all(producer: Producer) -> None:
    for row, text in enumerate(TEXTS):
        delivery = await producer.send("flights", text)
        if row % 500 == 499:
            await delivery


async def test_a_topic_that_takes_nothing_refuses_a_batch_as_a_whole(bootstrap: str, admin: Admin) -> None:
    """If a topic's limit is too small for any batch, a batch is refused as a whole, without trying single records."""
    await admin.create_topic("flights", config={"max.message.bytes": 100})
    async with Producer(bootstrap) as producer:
        deliveries = [await producer.send("flights", text) for text in TEXTS[:100]]
        errors = []
        for delivery in deliveries:
            with pytest.raises(BatchTooLargeError) as raised:
                await delivery
            errors.append(raised.value)

    assert len({id(error) for error in errors}) == 1


async def test_requests_are_split_too(tmp_path: Path) -> None:
    """Requests that exceed the broker's memory limit are split, even when a single batch is too large."""
    anywhere = Endpoint("127.0.0.1", 0)
    settings = BrokerSettings(
        data=tmp_path, listen=anywhere, peer_listen=anywhere, ops_listen=anywhere,
        limits=Limits(request_body_bytes_max=MIB),
    )  # fmt: skip
    broker = await start_broker(settings)
    table = pa.table({"value": [b"%01000d" % number for number in range(12_000)]})
    try:
        bootstrap = f"http://{broker.addresses.data}"
        async with Admin(bootstrap) as admin:
            await admin.create_topic("flights", partitions=6)
        async with Producer(bootstrap, columnar_batch_bytes=3 * MIB) as producer:
            for partition in range(6):
                part = table.slice(partition * 2000, 2000)
                await producer.send_batch("flights", part, partition=partition)
            await producer.flush()
            with raises(BodyTooLargeError, MIB):
                await producer.send_and_wait("flights", b"x" * MIB)
        async with Consumer(bootstrap) as consumer:
            await consumer.assign(topic="flights")
            end = await consumer.end_offsets()
            values = [record.value async for record in consumer.records(until=end)]
    finally:
        await broker.stop()

    assert sorted(value or b"" for value in values) == table.column("value").to_pylist()


async def test_a_blocking_producer_cuts_batches_too(bootstrap: str, admin: Admin) -> None:
    """A batch of a blocking producer is split too, and each delivery has its own outcome."""
    await admin.create_topic("flights", config={"max.message.bytes": LIMIT})

    def send() -> list[int]:
        """Send all records; the last record is too large."""
        with blocking.Producer(bootstrap, batch_bytes=50_000) as producer:
            deliveries = [producer.send("flights", text) for text in [*TEXTS, GIANT]]
            with pytest.raises(BatchTooLargeError):
                deliveries.pop().result(30)
            return [delivery.result(30).offset for delivery in deliveries]

    assert await asyncio.to_thread(send) == list(range(len(TEXTS)))
    assert await stored(bootstrap, len(TEXTS)) == TEXTS
