"""The numbers that let a broker store each batch of an idempotent producer once and in order.

Held by the queue of each partition, fed by the accumulator and the sender. Pure. A batch keeps its id, epoch and
first sequence over all its attempts, so that a repeat is recognised. What ends that:

- A batch was given up and is certainly not stored: those behind it can never be expected. If all of them were refused
  too, they go on where it began. If any may still be on its way, they begin again at sequence 0 of the next epoch,
  which keeps it out.
- A batch was given up and nobody knows: the next one tells. If it is acknowledged, both are stored; if it is
  refused, there is a gap, as above.
- The partition does not know the producer any more (a day without a batch): a new id.

A new identity begins when every batch before the break has its outcome. Must not know where identities come from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fairlead.errors import ClusterError, FairleadError, UnreachableError, error_of
from fairlead_api.batch.batches import ProducerStamp
from fairlead_api.problems import ProblemError, SideEffect

SEQUENCE_MAX: Final = 2**31 - 1
"""The sequence behind this one is 0."""

BATCHES_UNFINISHED_MAX: Final = 5
"""A partition remembers so many batches of a producer. A sixth would make it forget the first, whose repeat it could
then not recognise."""

SEQUENCE_CODES: Final = frozenset({"out_of_order_sequence", "unknown_producer"})
"""Refusals that say that the batch before is missing."""


def advanced(sequence: int, records: int) -> int:
    """Return the sequence so many records further."""
    return (sequence + records) & SEQUENCE_MAX


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who a batch says it is from."""

    producer_id: int
    epoch: int

    def next_epoch(self) -> ProducerIdentity:
        """Return the identity that fences this one."""
        return ProducerIdentity(self.producer_id, self.epoch + 1)


@dataclass(frozen=True, slots=True)
class Renewal:
    """Why the batches of a partition need a new identity, and from where on."""

    after: int
    """Number of the last batch that belongs to the old one."""
    cause: FairleadError
    new_id: bool
    """Whether a new id is needed, or the next epoch of the old one is enough."""
    doubtful: bool
    """Whether batches behind whose attempts had no definite answer may be stored: they are not sent again."""
    resume_at: int | None = None
    """Sequence at which the old identity may go on, unless a batch behind may still be on its way; None if one may."""


class PartitionSequences:
    """The sequences of one partition. Batches are told by their number in the queue, which grows by one each."""

    __slots__ = ("_gaps", "_next", "identity", "renewal")

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        self.renewal: Renewal | None = None
        self._next = 0
        self._gaps: list[int] = []
        """Batches that were given up and may be stored; a later acknowledgement says that they are."""

    def renews(self, number: int) -> bool:
        """Whether a batch waits for a new identity."""
        return self.identity is None or (self.renewal is not None and number > self.renewal.after)

    def begin(self, identity: ProducerIdentity) -> None:
        """Go on under a new identity; nothing of the old one is unfinished."""
        self.identity = identity
        self.renewal = None
        self._next = 0
        self._gaps.clear()

    def resume(self) -> None:
        """Go on as the same where the batch that broke off began; all behind it are refused."""
        assert self.renewal is not None, "there is no break"
        assert self.renewal.resume_at is not None, "a batch may be on its way"
        self._next = self.renewal.resume_at
        self.renewal = None

    def stamp(self, record_count: int) -> ProducerStamp:
        """Return what the next batch carries."""
        assert self.identity is not None, "batches are stamped once there is an identity"
        stamp = ProducerStamp(self.identity.producer_id, self.identity.epoch, self._next)
        self._next = advanced(self._next, record_count)
        return stamp

    def move(self, number: int, places: int) -> None:
        """Follow the batches behind one that was cut to their new numbers."""
        self._gaps = [gap + places if gap > number else gap for gap in self._gaps]
        if self.renewal is not None and self.renewal.after > number:
            self.renewal = replace(self.renewal, after=self.renewal.after + places)

    def acknowledged(self, number: int) -> None:
        """A batch is stored, so everything before it is."""
        if self._gaps:
            self._gaps = [gap for gap in self._gaps if gap > number]

    def given_up(
        self,
        number: int,
        stamp: ProducerStamp | None,
        record_count: int,
        cause: FairleadError,
        *,
        doubtful: bool,
    ) -> None:
        """A batch failed for good; `doubtful` if it may be stored."""
        if stamp is None:
            return
        if self.renews(number):
            if doubtful and self.renewal is not None and self.renewal.resume_at is not None:
                self.renewal = replace(self.renewal, resume_at=None)
        elif doubtful:
            self._gaps.append(number)
        elif self._next == advanced(stamp.base_sequence, record_count):
            # The last one that was stamped: its sequences are free again.
            self._next = stamp.base_sequence
        else:
            self._break(number, stamp, cause)

    def _break(self, number: int, stamp: ProducerStamp, cause: FairleadError) -> None:
        on_its_way = any(gap > number for gap in self._gaps)
        if self.renewal is not None:
            on_its_way = on_its_way or self.renewal.resume_at is None
        resume_at = None if on_its_way else stamp.base_sequence
        self.renewal = Renewal(number, cause, new_id=False, doubtful=False, resume_at=resume_at)

    def refused(self, number: int, error: ClusterError) -> bool:
        """The broker misses what came before a batch although all of it is finished.

        Say whether that is news: records that were acknowledged are not there.
        """
        gap = any(missing < number for missing in self._gaps)
        unknown = error.code == "unknown_producer"
        self.renewal = Renewal(number - 1, error, new_id=unknown and not gap, doubtful=True)
        return not gap and not unknown


def doubted(error: FairleadError, subject: str) -> FairleadError:
    """Return a failure for a batch one of whose attempts may have been stored, whatever its last one came to."""
    return in_doubt(error, subject, "an attempt before had no definite answer: the records may be stored")


def in_doubt(error: FairleadError, subject: str, told: str) -> FairleadError:
    """Return a failure as one of records that may be stored, and tell why; others keep the one that they share."""
    if isinstance(error, ClusterError):
        document = error.problem.to_document()
        document |= {"detail": f"{error.detail}; {told}", "side_effect": SideEffect.MAYBE.value}
        problem = ProblemError.from_document(document)
        return error_of(problem, subject=subject, broker=error.broker, advice=error.next_step)
    if isinstance(error, UnreachableError):
        unreachable = UnreachableError(subject, error.attempts, sent=True)
        unreachable.__cause__ = error.__cause__
        unreachable.add_note(told)
        return unreachable
    return error
