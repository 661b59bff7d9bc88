from __future__ import annotations

from typing import Any

import pytest

from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.measured import MeasuredCoordination
from fairlead_broker.coordination.protocol import CoordinationUnavailable
from fairlead_broker.registry.store_writes import Get, Put


async def test_every_call_is_timed_also_one_that_fails(
    store: EmbeddedCoordination, clock: Any, kit: Any
) -> None:
    """Every call to the store is timed by name, even if it fails, and its answer is returned."""
    told: list[tuple[str, float]] = []
    unreliable = kit.unreliable(store)

    async def slowly(call: Any) -> Any:
        clock.seconds += 2.5
        return await call()

    async def away(call: Any) -> None:
        del call
        clock.seconds += 5
        raise CoordinationUnavailable("away")

    unreliable.faults["transact"] = [slowly, away]
    measured = MeasuredCoordination(unreliable, clock, lambda call, seconds: told.append((call, seconds)))
    result = await measured.transact((), (Put("/k", b"v"), Get("/k")))
    with pytest.raises(CoordinationUnavailable):
        await measured.transact((), (Put("/k", b"w"),))
    page = await measured.list("/k")
    lease = await measured.grant_lease(9)
    await measured.keep_alive(lease)
    await measured.revoke(lease)
    await measured.compact(result.revision)

    assert [item.value for item in page.items] == [b"v"]
    assert told == [
        ("transact", 2.5),
        ("transact", 5.0),
        ("list", 0.0),
        ("grant_lease", 0.0),
        ("keep_alive", 0.0),
        ("revoke", 0.0),
        ("compact", 0.0),
    ]
