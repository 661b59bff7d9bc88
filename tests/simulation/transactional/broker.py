"""A broker in the simulation of transactions: calls from clients, ends of commits, checks of open transactions.

The module is a twin of `fairlead_broker.runtime.transactions` without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.registry.transaction_records import EndReason, Outcome, TransactionRecord
from fairlead_broker.transactions import decisions
from fairlead_broker.transactions.decisions import Begin, Decide, Decided, DecidedOtherwise, Fenced, Write
from fairlead_broker.transactions.looking import Looks
from fairlead_broker.transactions.outcomes import Finding, finding
from simulator.process import Process
from simulator.store import Item, Transaction
from transactional import guards
from transactional.deciding import Decision
from transactional.leading import Leadership
from transactional.messages import (
    TOPIC,
    Answer,
    BeginCall,
    Call,
    DecideCall,
    Ended,
    JoinCall,
    LastCall,
    Offset,
    OffsetCall,
    ProduceCall,
    Refused,
    offset_key,
    transaction_key,
)

if TYPE_CHECKING:
    from transactional.world import World

TICK_SECONDS: Final = 0.1
FIRST_RETRY_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 5.0
CLEAN_SECONDS: Final = 3.0
End = tuple[ProducerId, ProducerEpoch, int]
"""Producer, epoch and partition of a commit whose marker a leader must append."""


@dataclass(slots=True)
class _Due:
    at: float
    delay: float = FIRST_RETRY_SECONDS


class Broker(Process):
    """A broker of the cluster."""

    world: World

    def __init__(self, world: World, number: int) -> None:
        """Create a broker that is not running."""
        super().__init__(world, number)
        self.led: dict[int, Leadership] = {}
        self.hints: set[ProducerId] = set()
        self.cache: dict[ProducerId, tuple[TransactionRecord | None, int]] = {}
        self._forget()

    def _forget(self) -> None:
        self.led, self.hints, self.cache = {}, set(), {}
        self._due: dict[End, _Due] = {}
        self._confirmed: dict[ProducerId, set[tuple[ProducerEpoch, str, int]]] = {}
        self._looks = Looks()
        self._since: dict[tuple[int, ProducerId, ProducerEpoch], float] = {}
        self._ending: set[tuple[int, ProducerId, ProducerEpoch]] = set()

    def start(self) -> None:
        """Start a process."""
        super().start()
        self._forget()
        self.after(TICK_SECONDS, self._tick)

    def kill(self) -> None:
        """End the process at once."""
        if self.alive:
            super().kill()
            self._forget()
            self.world.faults.orphaned(self)

    def _tick(self) -> None:
        self._report_due()
        if guards.looks():
            self._look()
        self.after(TICK_SECONDS, self._tick)

    # -- calls from clients

    def answer(self, call: Call, answer: Answer) -> None:
        """Send an answer to a client."""
        world = self.world
        world.network.send(self.number, call.sender, world.clients[call.sender].answered, call, answer)

    def begin(self, request: BeginCall) -> None:
        """Begin a transaction (rule 7.1.2)."""
        wanted = Begin(self.world.plan.timeout_ms)

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, Answer]:
            begun = decisions.begin(record, wanted, now_us)
            assert begun is not None, "no epoch is the last"
            return (None if begun == record else begun), Ended(None, begun.epoch)

        def answered(answer: Answer) -> None:
            self.hint(request.producer_id)
            self.answer(request.call, answer)

        Decision(self, request.producer_id, change, answered).begin()

    def join(self, request: JoinCall) -> None:
        """Make the sender the member of its group that may commit."""
        store, key = self.world.store, offset_key(request.program)

        def join() -> int:
            found = store.items.get(key)
            before = Offset() if found is None else found.value
            joined = Offset(before.owner + 1, before.offset)
            store.transact(Transaction((), ((key, joined, None),)))
            return joined.owner

        self.ask_store(join, self._found, request.call)

    def offset(self, request: OffsetCall) -> None:
        """Return the committed offset of a program."""
        store, key = self.world.store, offset_key(request.program)

        def read() -> Offset:
            item: Item | None = store.items.get(key)
            return Offset() if item is None else item.value

        self.ask_store(read, self._found, request.call)

    def _found(self, answer: Answer | None, call: Call) -> None:
        self.answer(call, Refused("coordination_unavailable") if answer is None else answer)

    def decide(self, request: DecideCall) -> None:
        """Commit or abort a transaction (rules 7.1.3 to 7.1.5)."""
        is_commit = request.outcome is Outcome.COMMIT
        wanted = Decide(
            request.epoch,
            request.outcome,
            partitions={TOPIC: request.named} if request.named else {},
            has_offsets=is_commit,
        )
        offset = (request.program, request.offset, request.member) if is_commit else None

        def answered(answer: Answer) -> None:
            if not is_commit:
                self.hint(request.producer_id)
            self.answer(request.call, answer)

        change = self._change(request.producer_id, wanted)
        aborted = Ended(Outcome.ABORT, ProducerEpoch(request.epoch + 1))
        Decision(self, request.producer_id, change, answered, offset, aborted).begin()

    def _change(
        self, producer_id: ProducerId, wanted: Decide
    ) -> Callable[[TransactionRecord | None, TimestampUs], tuple[TransactionRecord | None, Answer]]:
        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, Answer]:
            found = decisions.decide(record, wanted, frozenset(self._confirmed.get(producer_id, ())), now_us)  # type: ignore[arg-type]
            match found:
                case Write(changed, decided):
                    return changed, Ended(decided.outcome, decided.next)
                case Decided(outcome, following):
                    return None, Ended(outcome, following)
                case DecidedOtherwise(outcome, _, following):
                    return None, Ended(outcome, following)
                case Fenced():
                    return None, Refused("producer_fenced")
                case _:
                    return None, Refused(type(found).__name__)

        return change

    def produce(self, request: ProduceCall) -> None:
        """Append a batch in a partition that this broker leads."""
        leadership = self.led.get(request.partition)
        if leadership is None:
            self.answer(request.call, Refused("not_leader"))
        else:
            leadership.produce(request, lambda answer: self.answer(request.call, answer))

    def produce_last(self, request: LastCall) -> None:
        """Append the last batches of a transaction, and commit it once all of them are stored (rule 7.1.9)."""
        answers: dict[int, Answer] = {}

        def answered(partition: int, answer: Answer) -> None:
            answers[partition] = answer
            if len(answers) == len(request.batches):
                self._commit_stored(request.commit, list(answers.values()))

        for batch in request.batches:
            leadership = self.led.get(batch.partition)
            if leadership is None:
                answered(batch.partition, Refused("not_leader"))
            else:
                leadership.produce(batch, partial(answered, batch.partition))

    def _commit_stored(self, commit: DecideCall, answers: list[Answer]) -> None:
        if guards.commits(answers):
            self.world.judge.counts["commits with batches"] += 1
            self.decide(commit)
        elif Refused("ProducerFenced") in answers:
            items, key = self.world.store.items, transaction_key(commit.producer_id)
            self.ask_store(lambda: (items.get(key),), self._found_commit, commit)
        else:
            self.answer(commit.call, Refused("not_stored"))

    def _found_commit(self, found: tuple[Item | None] | None, commit: DecideCall) -> None:
        """Answer a repeat whose batches are refused: an earlier attempt has committed, or the client is fenced."""
        if found is None:
            self.answer(commit.call, Refused("coordination_unavailable"))
            return
        self.world.judge.counts["repeats of a commit"] += 1
        decided = decisions.committed(None if found[0] is None else found[0].value, commit.epoch)
        self.answer(
            commit.call,
            Refused("not_stored") if decided is None else Ended(decided.outcome, decided.next),
        )

    # -- completion of commits (rules 7.3.1 and 7.3.4)

    def report(self, producer_id: ProducerId, record: TransactionRecord) -> None:
        """Report the unfinished commits of a written record to the leaders."""
        listed = {
            (commit.epoch, topic_id, partition)
            for commit in record.unfinished
            for topic_id, partitions in commit.partitions.items()
            for partition in partitions
        }
        known = self._confirmed.get(producer_id, set())
        self._confirmed[producer_id] = known & listed
        for epoch, _, partition in sorted(listed - known):
            self._due.setdefault((producer_id, epoch, partition), _Due(self.world.now))
        self._report_due()

    def _report_due(self) -> None:
        world = self.world
        for end, due in self._due.items():
            leadership = world.partitions[end[2]].leadership
            if due.at > world.now or leadership is None:
                continue
            due.at, due.delay = world.now + due.delay, min(due.delay * 2, RETRY_SECONDS_MAX)
            leader = leadership.broker
            world.network.send(self.number, leader.number, leader.end, end, self.number, self.life)

    def end(self, end: End, sender: int, life: int) -> None:
        """Append the marker of a commit, and confirm it to the sender when it is committed."""
        leadership, world = self.led.get(end[2]), self.world
        if leadership is None:
            return
        other = world.brokers[sender]

        def confirm() -> None:
            world.network.send(self.number, sender, other.confirmed, end, life)

        leadership.end(end[0], end[1], MarkerKind.COMMIT, confirm)

    def confirmed(self, end: End, life: int) -> None:
        """Note a confirmed marker, and some time later remove its partition from the record."""
        if life == self.life and self._due.pop(end, None) is not None:
            self._confirmed.setdefault(end[0], set()).add((end[1], TOPIC, end[2]))
            self.after(CLEAN_SECONDS, self._clean, end[0])

    def _clean(self, producer_id: ProducerId) -> None:
        def change(
            record: TransactionRecord | None, _: TimestampUs
        ) -> tuple[TransactionRecord | None, Answer]:
            if record is None:
                return None, 0
            confirmed = frozenset(self._confirmed.get(producer_id, ()))
            return decisions.without_confirmed(record, confirmed), 0  # type: ignore[arg-type]

        Decision(self, producer_id, change, guards.ignored).begin()

    # -- checks of open transactions (rules 7.3.2 and 7.3.3)

    def hint(self, producer_id: ProducerId) -> None:
        """Make all brokers check the open transactions of a producer."""
        self.hints.add(producer_id)
        for other in self.world.brokers.values():
            if other is not self:
                self.world.network.send(self.number, other.number, other.hints.add, producer_id)

    def _look(self) -> None:
        world = self.world
        found = {
            (index, producer_id, epoch)
            for index, leadership in self.led.items()
            for producer_id, epoch, _ in leadership.producers.open_transactions()
        }
        self._since = {each: self._since.get(each, world.now) for each in sorted(found)}
        producers = sorted({producer_id for _, producer_id, _ in found})
        for producer_id in producers:
            self._looks.opened(producer_id, world.now)
        self._looks.hinted([each for each in producers if each in self.hints], world.now)
        self.hints.clear()
        taken = [each for each in self._looks.take(world.now) if each in producers]
        if taken:
            items = world.store.items
            self.ask_store(lambda: [items.get(transaction_key(each)) for each in taken], self._looked, taken)

    def _looked(self, items: list[Item | None] | None, taken: list[ProducerId]) -> None:
        if items is None:
            return
        records = {
            each: None if item is None else item.value for each, item in zip(taken, items, strict=True)
        }
        for place, since in self._since.items():
            index, producer_id, epoch = place
            if producer_id not in records or place in self._ending:
                continue
            record = records[producer_id]
            what = finding(record, epoch, TOPIC, index)
            if what is Finding.OPEN:
                age = self.world.now - since
                if age < self.world.plan.timeout_ms / 1000 or not guards.ends_old_transactions():
                    continue
                if guards.decides_before_timeout():
                    self._abort(place)
                    continue
                what = Finding.ABORT
            self._mark(place, what)

    def _abort(self, place: tuple[int, ProducerId, ProducerEpoch]) -> None:
        """Write the abort of a transaction that is too old, and end the transaction as the stored record says."""
        index, producer_id, epoch = place
        self._ending.add(place)
        wanted = Decide(epoch, Outcome.ABORT, EndReason.TIMEOUT)
        decided = self._change(producer_id, wanted)
        seen: list[TransactionRecord | None] = []

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, Answer]:
            changed, answer = decided(record, now_us)
            seen[:] = [changed or record]
            return changed, answer

        def answered(answer: Answer) -> None:
            self._ending.discard(place)
            if not (isinstance(answer, Refused) and answer.code == "coordination_unavailable"):
                self._mark(place, finding(seen[0], epoch, TOPIC, index))

        Decision(self, producer_id, change, answered).begin()

    def _mark(self, place: tuple[int, ProducerId, ProducerEpoch], what: Finding) -> None:
        index, producer_id, epoch = place
        leadership = self.led.get(index)
        if leadership is not None and what in (Finding.ABORT, Finding.COMMIT):
            kind = MarkerKind.COMMIT if what is Finding.COMMIT else MarkerKind.ABORT
            leadership.end(producer_id, epoch, kind, guards.ignored)
