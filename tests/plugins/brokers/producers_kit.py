"""A partition that runs the producers' state machine, and whose appends fail on request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fairlead_api.batch.control_batches import Marker, MarkerKind
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs
from fairlead_broker.producers import (
    AlreadyEnded,
    AnswerAsAppended,
    AnswerStored,
    Append,
    Appended,
    AppendFailed,
    AppendMarker,
    Effect,
    EndDecided,
    KeyedArrived,
    Look,
    PartitionProducers,
    ProducerState,
    Refusal,
    Refuse,
    SequencedArrived,
    TimePassed,
    Withdrawn,
    advanced,
)

FIRST_TIME_US = 1_700_000_000_000_000


class Request:
    """Request that `Shell` passes to the machine, recognised by identity."""

    def __init__(
        self, sequence: int = -1, count: int = 1, digest: bytes = b"", marker: Marker | None = None
    ) -> None:
        self.sequence = sequence
        self.count = count
        self.digest = digest
        self.marker = marker


@dataclass
class Shell:
    """Runs a machine like the partition's task, with a list as the log."""

    machine: PartitionProducers[Request] = field(default_factory=lambda: PartitionProducers(ProducerState()))
    now: float = 0.0
    time_us: int = FIRST_TIME_US
    log: list[Request] = field(default_factory=list)
    end: int = 0
    group: list[Request] = field(default_factory=list)
    following: list[tuple[Request, Request]] = field(default_factory=list)
    answers: dict[Request, tuple[int, int] | Refusal | None] = field(default_factory=dict)
    """Base and last offset, a refusal, or None for a failed append, by request; -1 for an end without a marker."""
    looks: list[int] = field(default_factory=list)

    def send(
        self,
        sequence: int,
        count: int = 1,
        *,
        producer_id: int = 7,
        epoch: int = 0,
        request: Request | None = None,
        transactional: bool = False,
        session: int | None = None,
    ) -> Request:
        """Pass a batch to the machine."""
        request = request or Request(sequence, count)
        last = advanced(sequence, count - 1)
        self.run(
            self.machine.step(
                SequencedArrived(
                    request,
                    ProducerId(producer_id),
                    ProducerEpoch(epoch),
                    Sequence(sequence),
                    last,
                    self.now,
                    transactional,
                    None if session is None else ProducerEpoch(session),
                )
            )
        )
        return request

    def send_key(self, key: bytes, digest: bytes = b"body") -> Request:
        """Pass a keyed batch to the machine."""
        request = Request(digest=digest)
        self.run(self.machine.step(KeyedArrived(request, key, digest)))
        return request

    def end_transaction(
        self, epoch: int, kind: MarkerKind = MarkerKind.COMMIT, *, producer_id: int = 7
    ) -> Request:
        """Pass the decision about a transaction to the machine."""
        request = Request()
        decided = EndDecided(request, ProducerId(producer_id), ProducerEpoch(epoch), kind, TimestampUs(5))
        self.run(self.machine.step(decided))
        return request

    def run(self, effects: Iterable[Effect[Request]]) -> None:
        """Execute the machine's effects."""
        for effect in effects:
            match effect:
                case Append(request, assigned_sequence):
                    if assigned_sequence is not None:
                        request.sequence = assigned_sequence
                    self.group.append(request)
                case AppendMarker(request, marker):
                    request.marker = marker
                    self.group.append(request)
                case AlreadyEnded(request):
                    self.answers[request] = (-1, -1)
                case Look(producer_id):
                    self.looks.append(producer_id)
                case AnswerStored(request, base, last, _):
                    self.answers[request] = (base, last)
                case AnswerAsAppended(request, original):
                    self.following.append((request, original))
                case Refuse(request, refusal):
                    self.answers[request] = refusal

    def append(self) -> None:
        """Append the group to the log."""
        bases, lasts = [], []
        for request in self.group:
            bases.append(Offset(self.end))
            self.end += request.count
            lasts.append(Offset(self.end - 1))
            self.answers[request] = (bases[-1], lasts[-1])
        effects = self.machine.step(Appended(bases, lasts, TimestampUs(self.time_us)))
        self.log += self.group
        self._finish()
        self.run(effects)

    def fail(self) -> None:
        """Fail the append of the group to the log."""
        for request in self.group:
            self.answers[request] = None
        effects = self.machine.step(AppendFailed())
        self._finish()
        self.run(effects)

    def wait(self, seconds: float) -> None:
        """Advance the time, with a tick for the machine if it requested one."""
        self.now += seconds
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.run(self.machine.step(TimePassed(self.now)))

    def withdraw(self, request: Request) -> None:
        """Cancel the request of a batch."""
        self.machine.step(Withdrawn(request))

    def store(self, *sequences: int, **who: Any) -> list[Request]:
        """Store batches of one record, each in a separate append."""
        requests = []
        for sequence in sequences:
            requests.append(self.send(sequence, **who))
            self.append()
        return requests

    def _finish(self) -> None:
        for request, original in self.following:
            self.answers[request] = self.answers[original]
        self.group, self.following = [], []
