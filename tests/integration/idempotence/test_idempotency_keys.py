"""Requests with an `Idempotency-Key`."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from broker_kit import Answer, Calls
from fairlead_api.partitioning import partition_for_key

RECORDS = "/v1/topics/orders/records"
PARTITION = "/v1/topics/orders/partitions/0/records"


def keys_of(partition: int, partitions: int, count: int) -> list[str]:
    """Return keys whose records go to the same partition."""
    found = (f"k{number}" for number in range(10_000))
    chosen = (key for key in found if partition_for_key(key.encode(), partitions) == partition)
    return [next(chosen) for _ in range(count)]


def places(answer: Answer) -> list[tuple[int, int, str]]:
    """Return the offsets of a request's records, from its answer."""
    return [(r["partition"], r["base_offset"], r["log_append_time"]) for r in answer.json["results"]]


async def stored(api: Calls, partitions: int) -> list[bytes]:
    """Return all values of the topic, by partition."""
    return [value for partition in range(partitions) for value in await api.values("orders", partition)]


async def test_a_repeat_is_answered_with_the_original_offsets(api: Calls) -> None:
    """A repeated request gets the original offsets, even for records whose partition and time the broker chose."""
    await api.create("orders", 4)
    await api.post(RECORDS, [{"value": "before"}])
    body = [{"key": f"k{n}", "value": str(n)} for n in range(20)] + [{"value": "no key"}]

    first = await api.post(RECORDS, body, idempotency_key="order-17")
    second = await api.post(RECORDS, body, idempotency_key="order-17")
    other = await api.post(RECORDS, [{"value": "other"}], idempotency_key="order-18")

    assert (first.status, second.status, other.status) == (200, 200, 200)
    assert places(first) == places(second)
    assert [result["duplicate"] for result in second.json["results"]] == [True] * len(places(first))
    assert (first.headers.get("fairlead-duplicate"), second.headers["fairlead-duplicate"]) == (None, "true")
    assert len(await stored(api, 4)) == 23


async def test_the_same_key_for_another_body_is_refused(api: Calls) -> None:
    """A request with a used key and a different body is refused, even for a different partition."""
    await api.create("orders", 2)
    here, there = keys_of(0, 2, 1)[0], keys_of(1, 2, 1)[0]
    await api.post(RECORDS, [{"key": here, "value": "1"}], idempotency_key="order-17")

    same_place = await api.post(RECORDS, [{"key": here, "value": "2"}], idempotency_key="order-17")
    other_place = await api.post(RECORDS, [{"key": there, "value": "1"}], idempotency_key="order-17")
    one_partition = await api.post(PARTITION, [{"key": here, "value": "2"}], idempotency_key="order-17")

    assert [answer.status for answer in (same_place, other_place, one_partition)] == [422] * 3
    assert {same_place.code, other_place.code, one_partition.code} == {"idempotency_key_reused"}
    assert await stored(api, 2) == [b"1"]


async def test_after_a_partial_success_a_repeat_stores_the_rest(api: Calls) -> None:
    """A repeated request stores only the records that a partition refused at first, once its limit is raised."""
    await api.create("orders", 2, max_message_bytes=2000)
    small, large = keys_of(0, 2, 1)[0], keys_of(1, 2, 1)[0]
    body = [{"key": small, "value": "small"}, {"key": large, "value": "x" * 5000}]

    partial = await api.post(RECORDS, body, idempotency_key="order-17")
    await api.call(
        "PATCH",
        "/v1/topics/orders",
        msgspec.json.encode({"config": {"max.message.bytes": 100_000}}),
        {"content-type": "application/json"},
    )
    whole = await api.post(RECORDS, body, idempotency_key="order-17")

    assert (partial.status, whole.status) == (207, 200)
    assert [record["status"] for record in partial.json["records"]] == [200, 413]
    assert [(r["partition"], r["duplicate"]) for r in whole.json["results"]] == [(0, True), (1, False)]
    assert [len(value) for value in await stored(api, 2)] == [5, 5000]


async def test_repeats_at_the_same_time_are_stored_once(api: Calls) -> None:
    """Requests that are repeated before the first answer are stored once."""
    await api.create("orders")
    body = [{"value": "once"}]

    answers = await asyncio.gather(
        *(api.post(PARTITION, body, idempotency_key="order-17") for _ in range(20))
    )

    assert {answer.json["base_offset"] for answer in answers} == {0}
    assert sum(not answer.json["duplicate"] for answer in answers) == 1
    assert await api.values("orders") == [b"once"]


@pytest.mark.parametrize("acks", ["0", "1"])
async def test_acks_of_a_repeat_are_its_own(api: Calls, acks: str) -> None:
    """A repeated request waits as its own acks require, independently of the first request's acks."""
    await api.create("orders")
    await api.post(PARTITION, [{"value": "once"}], idempotency_key="order-17")

    again = await api.post(f"{PARTITION}?acks={acks}", [{"value": "once"}], idempotency_key="order-17")

    assert again.status == (202 if acks == "0" else 200)
    assert await api.values("orders") == [b"once"]


async def test_keys_beyond_the_limit_are_refused_for_a_while(
    api: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new key beyond the limit of a partition is refused, while known keys are still answered."""
    monkeypatch.setattr("fairlead_broker.producers.partition_producers.KEYS_MAX", 3)
    await api.create("orders")

    answers = [
        await api.post(PARTITION, [{"value": "once"}], idempotency_key=f"order-{n}") for n in (1, 2, 3, 4, 1)
    ]

    assert [answer.status for answer in answers] == [200, 200, 200, 429, 200]
    assert answers[3].code == "throttled"
    assert 86_000 < int(answers[3].headers["retry-after"]) <= 86_400
    assert answers[4].json["duplicate"]
