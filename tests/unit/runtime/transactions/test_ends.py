"""Confirmed commits whose records a broker cleans."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead_api.identifiers import ProducerEpoch, ProducerId
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.transaction_records import TransactionRecord, UnfinishedCommit
from fairlead_broker.runtime.transactions import ends as module
from fairlead_broker.runtime.transactions.decision_writes import DecisionWrites
from fairlead_broker.runtime.transactions.ends import TransactionEnds
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.runtime.transactions.transactions import Transactions
from fairlead_broker.telemetry import Telemetry
from log_kit import TOPIC, SteppingClock
from waiting import until

PRODUCER = ProducerId(7)


@pytest.fixture(autouse=True)
def without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean records at once."""
    monkeypatch.setattr(module, "CLEAN_SECONDS", 0.0)


async def test_confirmed_commits_of_a_deleted_record_are_forgotten(tmp_path: Path) -> None:
    """A broker keeps no trace of a confirmed commit whose record was deleted before it was cleaned."""
    clock, meters, tasks = SteppingClock(), TransactionMeters(Telemetry()), list[asyncio.Task[None]]()

    def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return tasks[-1]

    coordination = await EmbeddedCoordination.open(tmp_path / "store.sqlite", clock)
    store = TransactionStore(coordination, Keys("test"))
    writes = DecisionWrites(store, clock, spawn, meters)
    # The topic of the commit is deleted, so the commit needs no marker.
    metadata: Any = SimpleNamespace(partitions=lambda _: {}, deleted_topics={TOPIC})
    peers: Any = SimpleNamespace(own=SimpleNamespace(broker=1))
    none: Any = None
    confirmed: list[float] = []
    ends = TransactionEnds(none, metadata, peers, clock, spawn, confirmed.append)
    transactions = Transactions(store, writes, ends, none, meters, none, metadata, peers, clock, spawn)
    commit = UnfinishedCommit(epoch=ProducerEpoch(0), partitions={TOPIC: (0,)})
    record = TransactionRecord(
        epoch=ProducerEpoch(1), timeout_ms=60_000, unfinished=(commit,), used_us=clock.now_us()
    )
    try:
        ends.written(PRODUCER, record)
        spawn(ends.run(transactions.clean), "ends")
        await until(lambda: confirmed and not ends.confirmed(PRODUCER))

        assert not ends._clean_at
        assert not ends.unconfirmed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await coordination.close()
