"""A client process: it reads an input, writes batches in a transaction, and commits them with the offset of the input.

The process behaves like the SDK's producer: it retries calls without an answer, commits only when every batch is
acknowledged, and settles an unanswered commit with an abort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fairlead_api.identifiers import ProducerEpoch, ProducerId
from fairlead_broker.registry.transaction_records import Outcome
from simulator.process import Process
from transactional import guards
from transactional.messages import (
    Answer,
    BeginCall,
    Call,
    DecideCall,
    Ended,
    Input,
    JoinCall,
    LastCall,
    Offset,
    OffsetCall,
    ProduceCall,
    Refused,
)

if TYPE_CHECKING:
    from transactional.world import World

PATIENCE_SECONDS: Final = 0.8
PAUSE_SECONDS: Final = 0.1
LATE_SECONDS_MAX: Final = 6.0
RETRIES_MAX: Final = 12
"""Number of attempts to write a batch after which its transaction is aborted."""


class Client(Process):
    """The processes of one program, which run one after the other."""

    world: World

    def __init__(self, world: World, number: int, program: int, producer_id: ProducerId) -> None:
        """Create a process that is not running."""
        super().__init__(world, number)
        self.program = program
        self._name_id = producer_id
        self._calls = 0
        self._waiting: dict[int, Callable[[Answer], None]] = {}

    def start(self) -> None:
        """Start a process, which begins a transaction."""
        super().start()
        self._waiting = {}
        self.producer_id = self.world.next_producer() if self.world.plan.has_group else self._name_id
        self.epoch = ProducerEpoch(-1)
        self._input = self._member = 0
        self._acked: set[tuple[int, int]] = set()
        self._sent: list[tuple[int, int]] = []
        self._last: list[tuple[int, int]] = []
        self._phase = self._transaction = 0
        if self.world.plan.has_group:
            self._ask("join", lambda call: JoinCall(call, self.program), self._joined)
        else:
            self._begin()

    def _joined(self, answer: Answer) -> None:
        assert isinstance(answer, int), answer
        self._member = answer
        self._begin()

    def _begin(self) -> None:
        if guards.reads_offset_after_begin():
            self._ask("begin", self._begin_call, self._begun)
        else:
            self._ask("offset", self._offset_call, self._read_first)

    def _begin_call(self, call: Call) -> BeginCall:
        return BeginCall(call, self.producer_id)

    def _offset_call(self, call: Call) -> OffsetCall:
        return OffsetCall(call, self.program)

    def _read_first(self, answer: Answer) -> None:
        assert isinstance(answer, Offset), answer
        self._input = answer.offset
        self._ask("begin", self._begin_call, self._begun)

    def _begun(self, answer: Answer) -> None:
        assert isinstance(answer, Ended), answer
        assert answer.next is not None, answer
        self.epoch = answer.next
        if guards.reads_offset_after_begin():
            self._ask("offset", self._offset_call, self._read)
        else:
            self._next()

    def _read(self, answer: Answer) -> None:
        assert isinstance(answer, Offset), answer
        self._input = answer.offset
        self._next()

    # -- one transaction

    def _next(self) -> None:
        """Write the batches of the next input after a pause."""
        if self.world.traffic:
            self.after(self.world.schedule.between(0.0, self.world.plan.rest_seconds), self._write)

    def _write(self) -> None:
        rng, plan = self.world.schedule.rng, self.world.plan
        self._phase += 1
        self._transaction = self.world.next_transaction()
        count = rng.randint(1, plan.partitions)
        partitions = sorted(rng.sample(range(plan.partitions), count))
        self._sent = [
            (each, place) for each in partitions for place in range(rng.randint(1, plan.batches_max))
        ]
        self._acked, self._last = set(), []
        if self.world.schedule.happens(plan.last_call_share):
            self._last = [place for place in self._sent if (place[0], place[1] + 1) not in self._sent]
        for place in self._sent:
            if place not in self._last:
                self._send(place, self._phase, 0)
        if len(self._last) == len(self._sent):
            self._settle()
        if not guards.waits_for_acknowledgements(self):
            self._end(Outcome.COMMIT)

    def _send(self, place: tuple[int, int], phase: int, attempt: int) -> None:
        if phase != self._phase or place in self._acked:
            return
        if attempt == RETRIES_MAX:
            self._end(Outcome.ABORT)
            return
        partition = place[0]

        def answered(answer: Answer) -> None:
            if phase != self._phase or place in self._acked:
                return
            if isinstance(answer, int):
                self._acked.add(place)
                if len(self._acked) + len(self._last) == len(self._sent):
                    self._settle()
            elif isinstance(answer, Refused) and answer.code == "ProducerFenced":
                self._end(Outcome.ABORT)
            else:
                self.after(PAUSE_SECONDS, self._send, place, phase, attempt + 1)

        call = self._call(answered)
        request = self._batch(call, place)
        leadership = self.world.partitions[partition].leadership
        if leadership is not None:
            self._send_call(leadership.broker, "produce", request)
        self.after(PATIENCE_SECONDS, self._silent, call.number)

    def _batch(self, call: Call, place: tuple[int, int]) -> ProduceCall:
        value = Input(self.program, self._input, place[1], self._transaction)
        return ProduceCall(call, place[0], self.producer_id, self.epoch, place[1], value)

    def _settle(self) -> None:
        schedule, plan = self.world.schedule, self.world.plan
        if schedule.happens(plan.abort_share):
            self._end(Outcome.ABORT)
        elif self._last:
            self._send_last(self._phase, 0)
        else:
            self._end(Outcome.COMMIT)

    def _send_last(self, phase: int, attempt: int) -> None:
        """Send the last batches together with the commit, if one broker leads their partitions."""
        if phase != self._phase:
            return
        led = [self.world.partitions[partition].leadership for partition, _ in self._last]
        leader = None if led[0] is None else led[0].broker
        if leader is None or any(each is None or each.broker is not leader for each in led):
            waiting, self._last = self._last, []
            for place in waiting:
                self._send(place, phase, attempt)
            return
        if attempt == RETRIES_MAX:
            self._end(Outcome.ABORT)
            return

        def answered(answer: Answer) -> None:
            if phase == self._phase:
                self._answered_last(answer, phase, attempt)

        call = self._call(answered)
        batches = tuple(self._batch(call, place) for place in self._last)
        request = LastCall(batches, self._decide_call(call, Outcome.COMMIT, frozenset(self._sent)))
        self._send_call(leader, "produce_last", request)
        self.after(PATIENCE_SECONDS, self._silent, call.number)

    def _answered_last(self, answer: Answer, phase: int, attempt: int) -> None:
        match answer:
            case Refused("silent" | "not_stored" | "coordination_unavailable"):
                if self.world.schedule.happens(self.world.plan.impatient_share):
                    self._end(Outcome.ABORT)
                else:
                    self.after(PAUSE_SECONDS, self._send_last, phase, attempt + 1)
            case _:
                self._decided(answer, Outcome.COMMIT, phase)

    def _end(self, outcome: Outcome) -> None:
        self._phase += 1
        self._decide(outcome, self._phase)

    def _decide(self, outcome: Outcome, phase: int) -> None:
        if phase != self._phase:
            return

        def answered(answer: Answer) -> None:
            if phase == self._phase:
                self._decided(answer, outcome, phase)

        call = self._call(answered)
        self._send_call(self._broker(), "decide", self._decide_call(call, outcome, frozenset(self._acked)))
        self.after(PATIENCE_SECONDS, self._silent, call.number)

    def _decide_call(self, call: Call, outcome: Outcome, batches: frozenset[tuple[int, int]]) -> DecideCall:
        """Return a call that commits batches, or aborts."""
        is_commit = outcome is Outcome.COMMIT
        named = guards.named(tuple(sorted({partition for partition, _ in self._sent}))) if is_commit else ()
        if is_commit:
            self.world.judge.acknowledged(self.producer_id, self.epoch, self._input, batches)
        return DecideCall(
            call, self.producer_id, self.epoch, outcome, named,
            self.program, self._input + 1, self._member,
        )  # fmt: skip

    def _decided(self, answer: Answer, wanted: Outcome, phase: int) -> None:
        match answer:
            case Ended(outcome, following) if following is not None:
                self._phase += 1
                self.world.judge.answered(self.producer_id, self.epoch, outcome)
                if outcome is Outcome.COMMIT:
                    self._input += 1
                self.epoch = following
                self._next()
            case Refused("silent" | "coordination_unavailable" | "TooManyUnfinished"):
                impatient = self.world.schedule.happens(self.world.plan.impatient_share)
                following = Outcome.ABORT if impatient else wanted
                self.after(PAUSE_SECONDS, self._decide, following, phase)
            case _:
                # The process is fenced, or another member has its place.
                self.world.note("fenced", self.number, self.producer_id, self.epoch)
                self.kill()
                self.world.faults.fenced(self)

    # -- calls

    def _broker(self) -> Any:
        return self.world.schedule.rng.choice(list(self.world.brokers.values()))

    def _send_call(self, broker: Any, method: str, request: Any) -> None:
        """Send a call to a broker, and in some worlds a copy that arrives late."""
        network, schedule = self.world.network, self.world.schedule
        network.send(self.number, broker.number, getattr(broker, method), request)
        if schedule.happens(self.world.plan.late_share):
            late = schedule.between(0.5, LATE_SECONDS_MAX)
            network.send(self.number, broker.number, getattr(broker, method), request, late=late)

    def _call(self, answered: Callable[[Answer], None]) -> Call:
        self._calls += 1
        self._waiting[self._calls] = answered
        return Call(self.number, self.life, self._calls)

    def _ask(self, method: str, make: Callable[[Call], Any], then: Callable[[Answer], None]) -> None:
        """Call any broker until it answers."""

        def answered(answer: Answer) -> None:
            if isinstance(answer, Refused):
                self.after(PAUSE_SECONDS, self._ask, method, make, then)
            else:
                then(answer)

        call = self._call(answered)
        self._send_call(self._broker(), method, make(call))
        self.after(PATIENCE_SECONDS, self._silent, call.number)

    def _silent(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting(Refused("silent"))

    def answered(self, call: Call, answer: Answer) -> None:
        """Handle an answer, unless it is late."""
        waiting = self._waiting.pop(call.number, None) if call.life == self.life else None
        if waiting is not None:
            waiting(answer)
