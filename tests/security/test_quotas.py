"""Quotas of running brokers: refused, delayed and uncharged requests (rules Q1, Q2)."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client import generate_latest

from broker_kit import Answer, Calls
from cluster_kit import Cluster, until
from fairlead import Consumer, Delivery, Producer, TopicPartition
from figures import record
from security_kit import Secured

UNACKNOWLEDGED_MAX = 200
"""Maximum number of unacknowledged records, all of which are acknowledged before the delivery timeout."""
REFUSALS_MAX = 5
"""Number of the producer's requests in flight when its limit is first reported."""
ANONYMOUS_PER_SECOND = 100
ANONYMOUS_CALLS = 500
"""Number of calls without a token, several times as many as are admitted while a slow machine answers them."""
RECORD = {"records": [{"value": "x" * 50_000}]}


async def limit(secured: Secured, subject: str, **limits: object) -> None:
    """Set the quota of a subject."""
    answer = await secured.call("PUT", f"/v1/quotas/{quote(subject, safe='')}", secured.admin, limits)
    assert answer.status == 200, answer
    assert answer.json["applied_everywhere"] is True


async def writer(secured: Secured, name: str) -> str:
    """Return the token of a user that may use every topic."""
    token: str = (await secured.token(f"user:{name}"))["token"]
    await secured.acl(f"user:{name}", "all", "topic:*")
    return token


async def test_produce_over_a_limit_is_refused_with_the_time_to_wait(secured: Secured) -> None:
    """Any first request is admitted, the next is refused with the time until a retry (rules Q5, Q6).

    The answer to another kind of request contains no time, because its next request is admitted.
    """
    ann, bob = await writer(secured, "shop.ann"), await writer(secured, "bob")
    await secured.call("POST", "/v1/topics", secured.admin, {"name": "t"})
    await limit(secured, "user:shop.*", each={"produce_bytes_per_second": 1_000})
    first = await secured.call("POST", "/v1/topics/t/records", ann, RECORD)
    second = await secured.call("POST", "/v1/topics/t/records", ann, RECORD)
    other = await secured.call("POST", "/v1/topics/t/records", bob, RECORD)
    read = await secured.call("GET", "/v1/topics/t", ann)
    own = await secured.call("GET", "/v1/whoami", ann)
    listed = await secured.call("GET", "/v1/quotas?usage=true", secured.admin)

    assert (first.status, other.status, read.status) == (200, 200, 200)
    # Paying off the debt takes longer than the maximum time in an answer.
    assert first.headers["fairlead-throttle-ms"] == "30000"
    assert "fairlead-throttle-ms" not in {**other.headers, **read.headers}
    assert (second.status, second.code, second.json["side_effect"]) == (429, "throttled", "none")
    assert {name: second.json[name] for name in ("quota", "subject", "limit")} == {
        "quota": "produce_bytes_per_second",
        "subject": "user:shop.*",
        "limit": 1_000,
    }
    assert (second.json["retry_after_seconds"], second.headers["retry-after"]) == (30.0, "30")
    assert second.headers["fairlead-throttle-ms"] == "30000"
    assert [
        (each["limit"], each["value"], each["subject"], each["shared"]) for each in own.json["limits"]
    ] == [
        ("concurrent_requests", 2000, "*", False),
        ("produce_bytes_per_second", 1000, "user:shop.*", False),
    ]
    [quota] = listed.json["items"]
    assert quota["subject"] == "user:shop.*"
    assert [(use["limit"], use["principal"]) for use in quota["usage"]] == [
        ("produce_bytes_per_second", "user:shop.ann")
    ]


async def test_a_fetch_over_a_limit_waits(secured: Secured) -> None:
    """A fetch over the quota waits until the debt is paid, or returns no records when its long poll ends (rule Q6).

    The debt does not delay the caller's produce requests. It takes one and a half seconds to pay, so that the second
    fetch arrives before, even on a busy machine.
    """
    ann = await writer(secured, "ann")
    await secured.call("POST", "/v1/topics", secured.admin, {"name": "t"})
    await secured.call("POST", "/v1/topics/t/records", secured.admin, RECORD)
    await limit(secured, "user:*", shared={"fetch_bytes_per_second": 20_000})
    path = "/v1/topics/t/partitions/0/records?offset=0&max_wait_ms="
    first = await secured.call("GET", f"{path}0", ann)
    nothing = await secured.call("GET", f"{path}10", ann)
    begun = time.monotonic()
    waited = await secured.call("GET", f"{path}10000", ann)
    took = time.monotonic() - begun
    stored = await secured.call("POST", "/v1/topics/t/records", ann, {"records": [{"value": "x"}]})

    assert (first.status, nothing.status, waited.status, stored.status) == (200, 204, 200, 200)
    assert nothing.headers["fairlead-next-offset"] == "0"
    assert all(int(answer.headers["fairlead-throttle-ms"]) > 0 for answer in (first, nothing, waited))
    assert "fairlead-throttle-ms" not in stored.headers
    assert 0.1 < took < 5


async def test_requests_of_a_caller_are_limited_but_not_those_of_a_superuser(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests per second are limited for each caller, but never for a superuser (rule Q8)."""
    ann = await writer(secured, "ann")
    # All requests arrive at one time, however slow the machine is.
    now = time.monotonic()
    monkeypatch.setattr(secured.cluster.broker(1).quotas, "_now", lambda: now)
    await limit(secured, "*", each={"requests_per_second": 2})
    answers = [await secured.call("GET", "/v1/topics", ann) for _ in range(6)]
    admin = [await secured.call("GET", "/v1/topics", secured.admin) for _ in range(6)]
    hidden = await secured.call("GET", "/v1/versions", ann)
    await secured.call("DELETE", "/v1/quotas/%2A", secured.admin)
    free = [await secured.call("GET", "/v1/topics", ann) for _ in range(6)]

    assert [answer.status for answer in answers[:2]] == [200, 200]
    assert {answer.status for answer in answers[3:]} == {429}
    assert answers[-1].json["quota"] == "requests_per_second"
    exact_ms = answers[-1].json["retry_after_seconds"] * 1000
    assert int(answers[-1].headers["fairlead-throttle-ms"]) == math.ceil(exact_ms) > 0
    assert {answer.status for answer in (*admin, hidden, *free)} == {200}


def parked(secured: Secured, token: str, count: int) -> list[asyncio.Task[Answer]]:
    """Start fetches that wait for a record of the topic `t`."""
    path = "/v1/topics/t/partitions/0/records?offset=0&max_wait_ms=60000"
    return [asyncio.create_task(secured.call("GET", path, token)) for _ in range(count)]


async def in_progress(secured: Secured, broker: int, subject: str, count: int) -> None:
    """Wait until a broker counts this number of requests in progress for the limits of a subject."""
    quotas = secured.cluster.broker(broker).quotas
    await until(
        lambda: [use for key, use in quotas.use_of(subject) if key.limit == "concurrent_requests"] == [count],
        f"{count} requests are in progress",
    )


async def statuses(fetches: Sequence[asyncio.Task[Answer]]) -> list[int]:
    """Return the statuses of fetches that have started."""
    return [answer.status for answer in await asyncio.gather(*fetches)]


async def test_waiting_fetches_count_as_concurrent_requests(secured: Secured) -> None:
    """A caller with as many waiting fetches as it may have concurrent requests gets 429 until they end (rule Q2)."""
    ann, bob = await writer(secured, "ann"), await writer(secured, "bob")
    await secured.call("POST", "/v1/topics", secured.admin, {"name": "t", "partitions": 1})
    await limit(secured, "user:*", each={"concurrent_requests": 2})
    fetches = parked(secured, ann, 2)
    await in_progress(secured, 1, "user:*", 2)
    refused = [
        await secured.call("GET", "/v1/topics", ann),
        await secured.call("POST", "/v1/topics/t/records", ann, RECORD),
        *await asyncio.gather(*parked(secured, ann, 1)),
    ]
    other = await secured.call("GET", "/v1/topics", bob)
    waiting = [fetch.done() for fetch in fetches]
    await secured.call("POST", "/v1/topics/t/records", secured.admin, RECORD)
    ended = await statuses(fetches)
    free = await secured.call("GET", "/v1/topics", ann)

    assert [(answer.status, answer.code) for answer in refused] == [(429, "throttled")] * 3
    assert {name: refused[0].json[name] for name in ("quota", "subject", "limit")} == {
        "quota": "concurrent_requests",
        "subject": "user:*",
        "limit": 2,
    }
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].headers["fairlead-throttle-ms"] == "1000"
    assert waiting == [False, False]
    assert ended == [200, 200]
    assert (other.status, free.status) == (200, 200)


async def test_each_broker_admits_its_part_of_the_concurrent_requests(tmp_path: Path) -> None:
    """Each of two brokers admits half of the concurrent requests, rounded up; a refusal names the whole limit (Q4)."""
    cluster, file = await Cluster.open(tmp_path), tmp_path / "admin.token"
    try:
        await cluster.start(1, 2, security="enforce", admin_token_file=file)
        await cluster.topic("t", replication_factor=2)
        admin = file.read_text().strip()
        addresses = [str(cluster.brokers[number].addresses.data) for number in (1, 2)]
        async with Calls(addresses[0]) as first, Calls(addresses[1]) as second:
            one, two = (Secured(cluster, calls, admin) for calls in (first, second))
            ann = await writer(one, "ann")
            await limit(one, "user:ann", each={"concurrent_requests": 3})
            fetches = parked(one, ann, 2)
            await in_progress(one, 1, "user:ann", 2)
            refused = await one.call("GET", "/v1/topics", ann)
            other = await two.call("GET", "/v1/topics", ann)
            await one.call("POST", "/v1/topics/t/records", admin, RECORD)
            ended = await statuses(fetches)
    finally:
        await cluster.close()

    assert (refused.status, refused.json["quota"], refused.json["limit"]) == (429, "concurrent_requests", 3)
    assert other.status == 200
    assert ended == [200, 200]


async def status_from(address: str, source: str) -> int:
    """Return the status of a list of topics without a token, from a client with another address on this machine."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    writer.write(f"GET /v1/topics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.transport.abort()
    return int(line.split(b" ", 2)[1])


async def test_callers_without_a_token_are_limited_by_address(secured: Secured) -> None:
    """Requests without a token are limited to 100 per second from one address, even with an ACL (rule Q3).

    Clients at another address, and callers with a token, are not affected.
    """
    await secured.acl("anonymous", "describe", "topic:*")
    ann = await writer(secured, "ann")
    address = str(secured.cluster.brokers[1].addresses.data)
    begun = time.monotonic()
    answers = await asyncio.gather(*(secured.call("GET", "/v1/topics") for _ in range(ANONYMOUS_CALLS)))
    took = time.monotonic() - begun
    other = [await status_from(address, "127.0.0.2"), (await secured.call("GET", "/v1/topics", ann)).status]
    refused = [answer for answer in answers if answer.status != 200]

    # A bucket that is empty admits a request until it is in debt.
    assert ANONYMOUS_PER_SECOND <= len(answers) - len(refused) <= ANONYMOUS_PER_SECOND * (1 + took) + 1
    assert len(refused) > 0
    assert {(answer.status, answer.json["quota"], answer.json["subject"]) for answer in refused} == {
        (429, "requests_per_second", "anonymous")
    }
    assert {answer.json["limit"] for answer in refused} == {ANONYMOUS_PER_SECOND}
    assert other == [200, 200]


async def test_partitions_of_a_tenant_are_limited(secured: Secured) -> None:
    """Topics of a prefix cannot have more partitions in total than its quota, at creation or by growth."""
    await limit(secured, "topics:shop.*", shared={"partitions": 5})
    made = [
        await secured.call("POST", "/v1/topics", secured.admin, {"name": name, "partitions": count})
        for name, count in (("shop.a", 3), ("shop.b", 3), ("other", 9), ("shop.c", 2))
    ]
    grown = await secured.call("PATCH", "/v1/topics/shop.a", secured.admin, {"partitions": 4})

    assert [(answer.status, answer.code if answer.status > 299 else None) for answer in (*made, grown)] == [
        (201, None),
        (409, "conflict"),
        (201, None),
        (201, None),
        (409, "conflict"),
    ]


async def test_metrics_name_the_quota_and_no_caller(secured: Secured) -> None:
    """Metrics of a limit that refused a request name the subject of the quota, but no principal (rule Q10)."""
    ann = await writer(secured, "shop.ann")
    await secured.call("POST", "/v1/topics", secured.admin, {"name": "t"})
    await limit(secured, "user:shop.*", each={"produce_bytes_per_second": 1_000})
    for _ in range(2):
        await secured.call("POST", "/v1/topics/t/records", ann, RECORD)
    registry = secured.cluster.broker(1).telemetry.registry
    labels = {"subject": "user:shop.*", "limit": "produce_bytes_per_second"}
    shown = generate_latest(registry).decode()

    assert registry.get_sample_value("fairlead_quota_refused_total", labels) == 1
    assert 'subject="user:shop.*"' in shown
    assert "shop.ann" not in shown


async def test_quotas_that_fit_nothing_are_refused(secured: Secured) -> None:
    """A quota with an invalid subject or limit is refused, and the refusal names the field."""
    answers = [
        await secured.call("PUT", f"/v1/quotas/{quote(subject, safe='')}", secured.admin, body)
        for subject, body in (
            ("group:corp:x", {"each": {"requests_per_second": 1}}),
            ("user:ann", {}),
            ("user:ann", {"shared": {"partitions": 1}}),
            ("topics:a*", {"each": {"partitions": 1}}),
            ("topics:a b", {"shared": {"partitions": 1}}),
        )
    ]
    unknown = await secured.call("PUT", "/v1/quotas/x", secured.admin, {"each": {"requests": 1}})
    missing = await secured.call("DELETE", "/v1/quotas/user%3Aann", secured.admin)

    assert [(answer.status, answer.code, answer.json["field"]) for answer in answers] == [
        (422, "invalid_quota", field)
        for field in ("subject", "each", "shared.partitions", "each.partitions", "subject")
    ]
    assert (unknown.code, missing.code) == ("unknown_option", "quota_not_found")


@pytest.mark.parametrize(
    "records", [150, pytest.param(14_000, marks=[pytest.mark.scenario, pytest.mark.timeout(900)])]
)
async def test_a_producer_over_its_quota_keeps_order_and_gets_few_refusals(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """An idempotent producer that sends faster than its quota stores every record once and in order (proof V15).

    The producer waits for the reported times, so only its first requests are refused. The long form of the test takes
    ten minutes.
    """
    ann = await writer(secured, "ann")
    await secured.acl("user:ann", "all", "producer:*")
    await secured.call("POST", "/v1/topics", secured.admin, {"name": "t"})
    await limit(secured, "user:ann", each={"produce_bytes_per_second": 40_000})
    monkeypatch.setenv("FAIRLEAD_TOKEN", ann)
    refused = secured.cluster.broker(1).telemetry.metric("fairlead_quota_refused_total")
    address = f"http://{secured.cluster.brokers[1].addresses.data}"
    begun, waiting = time.monotonic(), deque[Delivery]()
    async with Producer(address, linger_ms=1, batch_bytes=2000) as producer:
        for number in range(records):
            waiting.append(await producer.send("t", b"%06d" % number + b"x" * 1000))
            if len(waiting) > UNACKNOWLEDGED_MAX:
                await waiting.popleft()
    took, counted = time.monotonic() - begun, producer.metrics
    stored = []
    async with Consumer(address) as consumer:
        await consumer.assign([TopicPartition("t", 0)])
        async for batch in consumer:
            stored += [int(value[:6]) for value in batch.values if value is not None]
            if len(stored) >= records:
                break

    refusals = refused.labels("user:ann", "produce_bytes_per_second")._value.get()
    figures = {
        "records": records,
        "seconds": round(took, 1),
        "stored_once_and_in_order": stored == list(range(records)),
    }
    figures |= {
        "refused": round(refusals),
        "waits": counted.waits,
        "waited_seconds": round(counted.waited_seconds, 1),
    }
    record("producer over its quota", figures)

    assert stored == list(range(records))
    # The amount that the quota allows in a second is admitted at once.
    assert took >= records * 1000 / 40_000 - 1.5
    assert counted.waits > 0
    assert counted.waited_seconds > 0
    assert refusals <= REFUSALS_MAX
