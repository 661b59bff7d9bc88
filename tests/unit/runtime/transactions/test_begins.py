"""Begins of transactions after the last epoch of a producer id, and names whose earlier producer ids are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.transaction_records import KafkaSession, Outcome, TransactionRecord
from fairlead_broker.runtime.transactions.decision_writes import DecisionWrites
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.runtime.transactions.transactions import Transactions
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.transactions.decisions import KAFKA_EPOCH_MAX, Begin, Decide
from log_kit import SteppingClock

OLD, NEW = ProducerId(7), ProducerId(8)
LAST = ProducerEpoch(KAFKA_EPOCH_MAX)
BEGIN = Begin(1000, "loader", is_kafka=True)
COMMIT = Decide(LAST, Outcome.COMMIT, metadata="m", is_kafka=True)


class Scene:
    """The transactions of one broker, whose next new producer id is `NEW`."""

    def __init__(self, coordination: EmbeddedCoordination) -> None:
        self.store = TransactionStore(coordination, Keys("test"))
        self.tasks: list[asyncio.Task[None]] = []
        self.hints: list[ProducerId] = []
        clock, meters = SteppingClock(), TransactionMeters(Telemetry())
        writes = DecisionWrites(self.store, clock, self.spawn, meters)
        ends: Any = SimpleNamespace(confirmed=lambda _: frozenset(), written=lambda _id, _record: None)
        looks: Any = SimpleNamespace(hint=self.hints.extend)
        metadata: Any = SimpleNamespace(brokers=())
        peers: Any = SimpleNamespace(own=SimpleNamespace(broker=1))
        self.transactions = Transactions(
            self.store, writes, ends, looks, meters, self.new_id, metadata, peers, clock, self.spawn
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task."""
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    async def new_id(self) -> ProducerId:
        """Return the next new producer id."""
        return NEW

    async def name(self, producer_id: ProducerId) -> None:
        """Write an open transaction with the last epoch of a producer id, and give the name to this producer id."""
        record = TransactionRecord(
            name="loader",
            epoch=LAST,
            timeout_ms=1000,
            used_us=TimestampUs(1),
            kafka=KafkaSession(epoch=LAST),
        )
        assert await self.store.create(producer_id, record, await self.store.find_name("loader")) is not None


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Yield the transactions of a broker with an embedded store."""
    coordination = await EmbeddedCoordination.open(tmp_path / "store.sqlite", SteppingClock())
    scene = Scene(coordination)
    yield scene
    await asyncio.gather(*scene.tasks)
    await coordination.close()


async def test_a_begin_after_the_last_epoch_fences_the_previous_instance(scene: Scene) -> None:
    """The name continues with a new producer id, and the open transaction of the previous one is aborted for ever."""
    await scene.name(OLD)
    begun = await scene.transactions.begin(BEGIN, lambda _: None)
    with pytest.raises(ProblemError) as refused:
        await scene.transactions.decide(OLD, COMMIT, lambda _: None)
    old = await scene.transactions.standing(OLD)

    assert (begun.transaction.producer_id, await scene.transactions.find("loader")) == (NEW, NEW)
    assert refused.value.code == "producer_fenced"
    assert old is not None
    assert (old.name, old.kafka, old.epoch) == (None, None, LAST + 1)
    assert scene.hints == [OLD]


async def test_a_commit_that_precedes_the_begin_is_kept(scene: Scene) -> None:
    """The begin refuses to end a record that was committed after it was read, and reads the record again."""
    await scene.name(OLD)
    attempts: list[bool] = []

    async def overtaken(*given: Any) -> Any:
        if not attempts:
            await scene.transactions.decide(OLD, COMMIT, lambda _: None)
        attempts.append((written := await scene.store.create(*given)) is not None)
        return written

    store = SimpleNamespace(find_name=scene.store.find_name, read=scene.store.read, create=overtaken)
    scene.transactions._begins._store = store  # type: ignore[assignment]
    await scene.transactions.begin(BEGIN, lambda _: None)
    old = await scene.transactions.standing(OLD)

    assert attempts == [False, True]
    assert old is not None
    assert (old.name, old.metadata, old.epoch) == (None, "m", LAST + 2)


async def test_a_forgotten_producer_keeps_the_name_of_its_successor(scene: Scene) -> None:
    """The deletion of a producer id whose record still has the name deletes only a name that leads to this id."""
    await scene.name(OLD)
    await scene.name(NEW)
    await scene.transactions.forget(OLD)
    kept = await scene.transactions.find("loader")
    await scene.transactions.forget(NEW)

    assert kept == NEW
    assert await scene.transactions.find("loader") is None
    assert await scene.transactions.standing(OLD) is None
