"""A busy caller with a token, and its effect on another caller (rule Q9, proof V14)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_kit import Calls
from overload_kit import BrokerUnderLoad, WellBehavedClient, now, one_batch, pause, record

pytestmark = [pytest.mark.serial, pytest.mark.prove, pytest.mark.scenario]

LIMIT = 2_000_000
"""Bytes that the busy caller may produce per second."""
BATCH_BYTES = 100_000
TIMES = 10
"""Offered load of the busy caller, as a multiple of its limit."""
P99_MS_MAX = 500.0
CALLS_MAX = 8
AT_ONCE = 64


@asynccontextmanager
async def tenants(broker: BrokerUnderLoad, **quota: int) -> AsyncIterator[tuple[Calls, WellBehavedClient]]:
    """Yield a client of a busy caller, and a calm client of another caller."""
    broker.enforce()
    await broker.start()
    try:
        async with Calls(broker.address, token=broker.token) as admin:

            async def caller(name: str) -> Calls:
                """Return a client of a caller that may use topics whose names begin with the caller's name."""
                made = await admin.post("/v1/tokens", {"principal": f"user:{name}"})
                acl: dict[str, Any] = {"principal": f"user:{name}", "operations": ["all"]}
                acl |= {"kind": "topic", "pattern": f"{name}*"}
                assert (await admin.post("/v1/acls", acl)).status == 201
                return Calls(broker.address, token=made.json["token"])

            async with await caller("busy") as busy, await caller("calm") as calm:
                if quota:
                    body = f'{{"each": {{"produce_bytes_per_second": {quota["limit"]}}}}}'.encode()
                    json = {"content-type": "application/json"}
                    put = await admin.call("PUT", "/v1/quotas/user%3Abusy", body, json)
                    assert put.status == 200, put
                await busy.create("busy", 4)
                client = WellBehavedClient(calm)
                await client.create()
                yield busy, client
    finally:
        broker.kill()


async def test_a_tenant_is_kept_at_its_limit(full: bool, tmp_path: Path) -> None:
    """A caller that sends ten times its limit gets its limit to within a tenth; another caller is served as before.

    The caller ignores the waiting times that refusals ask for.
    """
    seconds = 30.0 if full else 4.0
    async with tenants(BrokerUnderLoad(tmp_path), limit=LIMIT) as (busy, calm):
        batch = one_batch(BATCH_BYTES, 1)
        quiet = await calm.run(seconds / 4)
        statuses, begun = Counter[int](), now()

        async def send(number: int) -> None:
            answer = await busy.send("busy", batch, number % 4)
            statuses[answer.status] += 1

        async def offer() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in itertools.count():
                    if (passed := now() - begun) > seconds:
                        return
                    tasks.create_task(send(number))
                    await pause(max(0.0, (number + 1) * len(batch) / (LIMIT * TIMES) - passed))

        _, beside = await asyncio.gather(offer(), calm.run(seconds))
    # A tenant may use the bytes of one second at once, so they are admitted in addition.
    admitted = statuses[200] * len(batch) / (seconds + 1) / LIMIT
    record(
        "tenant over its quota",
        {
            "admitted_share_of_limit": round(admitted, 3),
            "statuses": dict(statuses),
            "quiet_p99_ms": quiet.p99_ms,
            "beside_p99_ms": beside.p99_ms,
            "failures": beside.failures,
        },
    )

    # A broker on a machine that other programs keep busy also sheds calls.
    assert statuses.keys() <= {200, 429, 503}
    assert statuses[429]
    assert admitted <= 1.1
    assert admitted >= 0.9 or statuses[503]
    assert beside.failures == 0
    assert beside.p99_ms <= P99_MS_MAX


async def test_a_busy_caller_leaves_room_for_another(tmp_path: Path) -> None:
    """While one caller uses every produce call that a broker admits, no call from a calm caller is refused."""
    async with tenants(BrokerUnderLoad(tmp_path, produce_calls_max=CALLS_MAX)) as (busy, calm):
        batch, statuses, end = one_batch(1000, 1), Counter[int](), now() + 2.0

        async def send(number: int) -> None:
            while now() < end:
                statuses[(await busy.send("busy", batch, number % 4)).status] += 1

        async with asyncio.TaskGroup() as tasks:
            for number in range(AT_ONCE):
                tasks.create_task(send(number))
            beside = await calm.run(1.5)

    assert statuses.keys() == {200, 503}
    assert beside.failures == 0
    assert beside.count
