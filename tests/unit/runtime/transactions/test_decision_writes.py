"""Writes of decisions about transactions, many of which share a write.

No fault of the store leads to two different decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import ProducerEpoch, ProducerId, Revision, TimestampUs, TopicId
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.coordination import protocol
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import CoordinationUnavailable, UnknownOutcome
from fairlead_broker.coordination.transaction_store import ABSENT, Replacement, Standing, TransactionStore
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Compare, Operation, Put, TransactionResult
from fairlead_broker.registry.transaction_records import Outcome, TransactionRecord
from fairlead_broker.runtime.transactions import decision_writes, joint_commits
from fairlead_broker.runtime.transactions.decision_writes import DecisionWrites
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.runtime.transactions.transactions import Transactions
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.transactions.decisions import Begin, Decide, Decided, NotFound, Write, begin, decide
from log_kit import SteppingClock

KEYS = Keys("test")
PRODUCER = ProducerId(7)


class FaultyStore:
    """Client of a store whose next writes fail: `away`, `lost` before the change, or `applied` with a lost answer."""

    def __init__(self, store: EmbeddedCoordination) -> None:
        self._store = store
        self.faults: list[str] = []
        self.writes = 0
        self.before_write: Awaitable[object] | None = None
        """Change by another broker that precedes the next write."""
        self.before_read: Awaitable[object] | None = None
        """Change that precedes the next read."""

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Run a transaction, with the next fault if the transaction writes."""
        is_write = any(isinstance(each, Put) for each in success)
        self.writes += is_write
        if is_write and self.before_write is not None:
            before, self.before_write = self.before_write, None
            await before
        if not is_write and self.before_read is not None:
            before, self.before_read = self.before_read, None
            await before
        fault = self.faults.pop(0) if self.faults and is_write else ""
        if fault == "away":
            raise CoordinationUnavailable(fault)
        if fault == "lost":
            raise UnknownOutcome(fault)
        result = await self._store.transact(compares, success, failure)
        if fault == "applied":
            raise UnknownOutcome(fault)
        return result


class Scene:
    """Two brokers that decide about transactions in one store."""

    def __init__(self, store: EmbeddedCoordination) -> None:
        self.clock = SteppingClock()
        self.faulty = FaultyStore(store)
        self.store = TransactionStore(self.faulty, KEYS)  # type: ignore[arg-type]
        self.other = TransactionStore(store, KEYS)
        self.meters = TransactionMeters(Telemetry())
        self.writes = DecisionWrites(self.store, self.clock, self.spawn, self.meters)
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task."""
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    async def create(self, producer_id: ProducerId = PRODUCER) -> Standing:
        """Write the first record of a producer."""
        record = begin(None, Begin(60_000), TimestampUs(1))
        assert record is not None
        standing = await self.other.create(producer_id, record, None)
        assert standing is not None
        return standing

    async def end(self, outcome: Outcome, epoch: int = 0, producer_id: ProducerId = PRODUCER) -> object:
        """Decide about a transaction, and return the answer to the request."""
        request = Decide(ProducerEpoch(epoch), outcome, metadata="m" if outcome is Outcome.COMMIT else None)

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, object]:
            answer = decide(record, request, frozenset(), now_us)
            return (answer.record, answer.answer) if isinstance(answer, Write) else (None, answer)

        return await self.writes.change(producer_id, change)

    async def commit_together(self, producers: Sequence[ProducerId]) -> dict[ProducerId, Decided]:
        """Commit the first transactions of several producers together, and return the answers."""
        ends = SimpleNamespace(confirmed=lambda _: frozenset(), written=lambda _id, _record: None)
        others: Any = (None, self.meters, None, None, None, self.clock, self.spawn)
        transactions = Transactions(self.store, self.writes, ends, *others)  # type: ignore[arg-type]
        request = Decide(ProducerEpoch(0), Outcome.COMMIT, metadata="m")
        return await transactions.commit_together(dict.fromkeys(producers, request), lambda _: None)

    async def stored(self, producer_id: ProducerId = PRODUCER) -> TransactionRecord:
        """Return the stored record."""
        record = (await self.other.read([producer_id]))[producer_id].record
        assert record is not None
        return record


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Yield a store and its brokers, which retry failed writes at once."""
    for module in (decision_writes, joint_commits):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    scene = Scene(await EmbeddedCoordination.open(tmp_path / "store.sqlite", SteppingClock()))
    yield scene
    for task in scene.tasks:
        task.cancel()
    await asyncio.gather(*scene.tasks, return_exceptions=True)
    await scene.faulty._store.close()


async def test_a_decision_is_made_once(scene: Scene) -> None:
    """The first decision is written, and a repeated request is answered as a duplicate.

    A request for the opposite outcome gets the stored decision.
    """
    await scene.create()
    first = await scene.end(Outcome.COMMIT)
    again = await scene.end(Outcome.COMMIT)
    opposite = await scene.end(Outcome.ABORT)

    assert (first.duplicate, again.duplicate) == (False, True)  # type: ignore[attr-defined]
    assert opposite.outcome is Outcome.COMMIT  # type: ignore[attr-defined]
    assert scene.faulty.writes == 1


async def test_decisions_that_arrive_together_share_writes(scene: Scene) -> None:
    """Decisions of many producers are written by few writes, each of up to a hundred."""
    producers = [ProducerId(number) for number in range(200)]
    for producer_id in producers:
        await scene.create(producer_id)
    await asyncio.gather(*(scene.end(Outcome.COMMIT, producer_id=each) for each in producers))

    assert scene.faulty.writes <= 4
    assert {(await scene.stored(each)).epoch for each in producers} == {1}


async def test_large_records_are_written_in_several_writes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions whose records exceed the size of one write are written one after the other, and none is refused."""
    producers = [ProducerId(number) for number in range(3)]
    size = 0
    for producer_id in producers:
        record = (await scene.create(producer_id)).record
        assert record is not None
        size = len(encode(record))
    monkeypatch.setattr(decision_writes, "WRITE_BYTES_MAX", size)
    await asyncio.gather(*(scene.end(Outcome.COMMIT, producer_id=each) for each in producers))

    assert scene.faulty.writes == len(producers)
    assert {(await scene.stored(each)).epoch for each in producers} == {1}


@pytest.mark.parametrize("together", [True, False])
async def test_only_the_decision_that_is_too_large_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    """A record that does not fit in one write of the store is refused at once; decisions that share the write stay."""
    small, large, last = producers = [ProducerId(number) for number in range(3)]
    for producer_id in producers:
        await scene.create(producer_id)
    text = "x" * 2000
    monkeypatch.setattr(protocol, "REQUEST_BYTES_MAX", len(text))
    if not together:
        monkeypatch.setattr(decision_writes, "WRITE_BYTES_MAX", 1)

    def change(
        record: TransactionRecord | None, now_us: TimestampUs
    ) -> tuple[TransactionRecord | None, None]:
        assert record is not None
        return msgspec.structs.replace(record, metadata=text, used_us=now_us), None

    async with asyncio.timeout(decision_writes.SECONDS_MAX / 2):
        first, refused, second = await asyncio.gather(
            scene.end(Outcome.COMMIT, producer_id=small),
            scene.writes.change(large, change),
            scene.end(Outcome.COMMIT, producer_id=last),
            return_exceptions=True,
        )

    assert isinstance(refused, ProblemError)
    assert (refused.code, refused.data["transaction"]) == ("transaction_too_large", "1.0")
    assert [isinstance(each, Decided) for each in (first, second)] == [True, True]
    assert [(await scene.stored(each)).epoch for each in producers] == [1, 0, 1]


async def test_more_producers_than_records_in_memory(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions of more producers than the broker keeps in memory are all written."""
    monkeypatch.setattr(decision_writes, "CACHED_MAX", 2)
    producers = [ProducerId(number) for number in range(5)]
    for producer_id in producers:
        await scene.create(producer_id)
        await scene.end(Outcome.ABORT, epoch=9, producer_id=producer_id)
    async with asyncio.timeout(60):
        await asyncio.gather(*(scene.end(Outcome.COMMIT, producer_id=each) for each in producers))

    assert {(await scene.stored(each)).epoch for each in producers} == {1}


async def test_an_overtaken_decision_is_decided_again(scene: Scene) -> None:
    """A write that is based on an outdated record fails, and the request is decided again with the newer record."""
    standing = await scene.create()
    await scene.end(Outcome.ABORT, epoch=9)
    record = begin(standing.record, Begin(60_000), TimestampUs(2))
    assert record is not None
    await scene.other.write({PRODUCER: Replacement.encoded(standing, record)})
    late = await scene.end(Outcome.COMMIT)
    current = await scene.end(Outcome.COMMIT, epoch=1)

    assert late.current_epoch == 1  # type: ignore[attr-defined]
    assert current.next == 2  # type: ignore[attr-defined]


async def test_a_record_that_is_noted_during_a_read_is_not_overwritten(scene: Scene) -> None:
    """A decision compares the record on which it is based, not a newer record that another task has read."""
    other = ProducerId(8)
    standing = await scene.create()
    await scene.create(other)
    for producer_id in (PRODUCER, other):
        await scene.end(Outcome.ABORT, epoch=9, producer_id=producer_id)
    record = begin(standing.record, Begin(60_000), TimestampUs(2))
    assert record is not None

    async def overtake() -> None:
        _, written = await scene.other.write({PRODUCER: Replacement.encoded(standing, record)})
        scene.writes.noted(PRODUCER, written[PRODUCER])

    scene.faulty.before_read = overtake()
    late, unknown = await asyncio.gather(
        scene.end(Outcome.COMMIT), scene.end(Outcome.COMMIT, epoch=9, producer_id=other)
    )

    assert late.current_epoch == 1  # type: ignore[attr-defined]
    assert isinstance(unknown, NotFound)
    assert (await scene.stored()).epoch == 1


@pytest.mark.parametrize("faults", [["lost"], ["applied"], ["away"], ["lost", "applied", "away"]])
async def test_faults_of_the_store_never_change_a_decision(scene: Scene, faults: list[str]) -> None:
    """After a write with an unknown outcome, the record is read again.

    A decision is written exactly once, and the answer contains the written decision.
    """
    await scene.create()
    scene.faulty.faults += faults
    answer = await scene.end(Outcome.COMMIT)
    record = await scene.stored()

    assert answer.outcome is Outcome.COMMIT  # type: ignore[attr-defined]
    assert record.ended is not None
    assert (record.epoch, record.ended.outcome) == (1, Outcome.COMMIT)


@pytest.mark.parametrize(
    ("faults", "writes"), [([], 1), (["lost"], 2), (["applied"], 1), (["away", "lost", "applied"], 3)]
)
async def test_a_joint_commit_is_written_once(scene: Scene, faults: list[str], writes: int) -> None:
    """All commits are in one write, and after an unknown outcome the records are read before another write."""
    producers = [ProducerId(number) for number in range(100)]
    for producer_id in producers:
        await scene.create(producer_id)
    scene.faulty.faults += faults
    answers = await scene.commit_together(producers)
    records = [await scene.stored(each) for each in producers]

    assert {answer.outcome for answer in answers.values()} == {Outcome.COMMIT}
    assert {record.epoch for record in records} == {1}
    assert scene.faulty.writes == writes


async def test_a_joint_commit_with_a_refused_transaction_writes_nothing(scene: Scene) -> None:
    """The refusal of one transaction refuses the whole commit, even if another broker ends it at the same time."""
    standings = {each: await scene.create(each) for each in (ProducerId(1), ProducerId(2))}
    record = begin(standings[ProducerId(2)].record, Begin(60_000), TimestampUs(2))
    assert record is not None
    overtaking = Replacement.encoded(standings[ProducerId(2)], record)
    scene.faulty.before_write = scene.other.write({ProducerId(2): overtaking})
    with pytest.raises(ProblemError) as caught:
        await scene.commit_together(list(standings))

    assert caught.value.code == "producer_fenced"
    assert (await scene.stored(ProducerId(1))).epoch == 0


async def test_a_joint_commit_that_is_too_large_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joint commit whose records do not fit in one write of the store changes nothing, and is not repeated."""
    records = {each: (await scene.create(each)).record for each in (ProducerId(1), ProducerId(2))}
    nbytes = sum(len(encode(record)) for record in records.values() if record is not None)
    with monkeypatch.context() as small:
        small.setattr(protocol, "REQUEST_BYTES_MAX", nbytes)
        with pytest.raises(ProblemError) as caught:
            await scene.commit_together(list(records))

    assert (caught.value.code, caught.value.side_effect) == ("transaction_too_large", SideEffect.NONE)
    assert scene.faulty.writes == 1
    assert {each: await scene.stored(each) for each in records} == records


@pytest.mark.parametrize("fault", ["away", "lost"])
async def test_a_joint_commit_without_an_answer_is_reported(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The refusal states whether the commit may be stored."""
    monkeypatch.setattr(joint_commits, "SECONDS_MAX", 0.0)
    await scene.create()
    scene.faulty.faults.append(fault)
    with pytest.raises(ProblemError) as caught:
        await scene.commit_together([PRODUCER])

    effect = SideEffect.MAYBE if fault == "lost" else SideEffect.NONE
    assert (caught.value.code, caught.value.side_effect) == ("coordination_unavailable", effect)


async def test_a_store_that_stays_away_is_reported(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change whose outcome is not known in time is refused, with the side effect `maybe` if it may be stored."""
    monkeypatch.setattr(decision_writes, "SECONDS_MAX", 0.0)
    await scene.create()
    effects = []
    for fault in ("away", "lost"):
        scene.faulty.faults += [fault]
        with pytest.raises(ProblemError) as caught:
            await scene.end(Outcome.COMMIT)
        effects.append((caught.value.code, caught.value.side_effect))

    assert effects == [
        ("coordination_unavailable", SideEffect.NONE),
        ("coordination_unavailable", SideEffect.MAYBE),
    ]


async def test_a_stale_record_in_memory_answers_nothing(scene: Scene) -> None:
    """An answer without a write is based on a read made after the request arrived, never on a record in memory."""
    await scene.create()
    scene.writes.noted(PRODUCER, ABSENT)
    answer = await scene.end(Outcome.COMMIT)
    record = (await scene.stored()).epoch

    assert (answer.outcome, record) == (Outcome.COMMIT, 1)  # type: ignore[attr-defined]
    assert ABSENT.revision == Revision(0)


@pytest.mark.parametrize("fault", ["away", "lost", "applied"])
async def test_only_written_commits_are_reported(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A commit whose write may have failed is not reported to the leaders, which would append its markers."""
    monkeypatch.setattr(decision_writes, "SECONDS_MAX", 0.0)
    standing = await scene.create()
    reported: list[TransactionRecord] = []
    ends = SimpleNamespace(confirmed=lambda _: frozenset(), written=lambda _, record: reported.append(record))
    parts: Any = (
        scene.store,
        scene.writes,
        ends,
        None,
        scene.meters,
        None,
        None,
        None,
        scene.clock,
        scene.spawn,
    )
    request = Decide(ProducerEpoch(0), Outcome.COMMIT, partitions={TopicId("orders"): (0,)})
    scene.faulty.faults += [fault]
    with pytest.raises(ProblemError):
        await Transactions(*parts).decide(PRODUCER, request, lambda _: None)

    assert reported == [standing.record]
