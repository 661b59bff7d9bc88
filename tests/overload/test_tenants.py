"""A busy caller with a token, and its effect on another caller (rule Q9)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_kit import Calls
from overload_kit import BrokerUnderLoad, WellBehavedClient, now, one_batch

pytestmark = [pytest.mark.serial, pytest.mark.prove, pytest.mark.scenario]

CALLS_MAX = 8
AT_ONCE = 64


@asynccontextmanager
async def tenants(broker: BrokerUnderLoad) -> AsyncIterator[tuple[Calls, WellBehavedClient]]:
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
                await busy.create("busy", 4)
                client = WellBehavedClient(calm)
                await client.create()
                yield busy, client
    finally:
        broker.kill()


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
