"""Collects records in batches, numbers the batches, and decides which batches may be sent now.

The producer appends records, and the sender takes batches out. The module is synchronous and performs no I/O: time is
an argument, `drain` returns the partitions whose first batch may be sent, and `next_deadline` returns the time of the
next call. Rules:

- The batches of a partition are sent in the order of their appends. HTTP/2 streams overtake each other: without
  sequences, a partition has at most one unfinished batch. With sequences, a partition has at most five unfinished
  batches, and the broker orders these batches. The limit of five counts from the oldest unfinished batch, whether that
  batch is in flight or waits for a retry.
- A batch is sent when it is full, when its linger time has passed, or at a flush or close.
- A batch that is too large for its topic is cut, and its pieces are sent in its place.
- `buffer_bytes` bounds the unacknowledged payload. If there is no space, `send` waits in the producer.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from fairlead.errors import FairleadError
from fairlead.producing.fitting import fitting_bytes
from fairlead.producing.pending_batch import (
    ColumnsBatch,
    PartitionQueue,
    PendingBatch,
    ProducerIdentity,
    RecordsBatch,
    Renewal,
)
from fairlead.settings import ProducerSettings
from fairlead_api.problems import SideEffect

if TYPE_CHECKING:
    import pyarrow as pa

BATCHES_UNFINISHED_MAX: Final = 5
"""Number of batches per producer that the leader of a partition remembers. A sixth unfinished batch would displace the
first, and the leader could no longer recognise a retry of the first batch."""

UNDRAINED_MAX: Final = 16
"""Number of opened batches after which `send` yields to the sender. Records that a program sends to a few partitions in
a row share a request, even without a linger time."""

_NUMBER: Final = attrgetter("number")


class Accumulator:
    """All partition queues of a producer under one memory bound.

    `room` is the number of payload bytes that may still be appended. The producer's `send` reads and lowers `room`
    directly, since a call per record would cost as much as the append itself. `identity` is the newest identity of an
    idempotent producer: the sender sets the identity, and queues adopt it when they need a new identity.
    """

    __slots__ = (
        "_active",
        "_idempotence",
        "_linger_seconds",
        "_timeout_seconds",
        "_unfinished",
        "_unfinished_max",
        "identity",
        "room",
        "undrained",
    )

    def __init__(self, settings: ProducerSettings) -> None:
        self._linger_seconds = settings.linger_seconds
        self._timeout_seconds = settings.delivery_timeout_seconds
        self._idempotence = settings.idempotence
        self._unfinished_max = BATCHES_UNFINISHED_MAX if settings.idempotence else 1
        self.identity: ProducerIdentity | None = None
        self._active: dict[PartitionQueue, None] = {}
        self._unfinished: dict[PendingBatch, None] = {}
        self.room = settings.buffer_bytes
        self.undrained = 0
        """Number of batches opened since the last `drain`; a batch after a full one counts as `UNDRAINED_MAX`."""

    @property
    def unfinished(self) -> tuple[PendingBatch, ...]:
        """Every batch without an outcome, oldest first."""
        return tuple(self._unfinished)

    @property
    def unfinished_count(self) -> int:
        """Number of batches without an outcome."""
        return len(self._unfinished)

    def open_batch(self, queue: PartitionQueue, now: float) -> RecordsBatch:
        """Open a batch of a partition and close the previous batch."""
        self.undrained += 1 if queue.open is None else UNDRAINED_MAX
        queue.close_open()
        batch = RecordsBatch(queue, now)
        queue.open = batch
        self._watch(batch)
        return batch

    def append_columns(self, queue: PartitionQueue, columns: pa.RecordBatch, now: float) -> ColumnsBatch:
        """Append a table piece, for which the caller has reserved space, as a closed batch after earlier records."""
        batch = ColumnsBatch(queue, columns, now)
        queue.close_open()
        queue.closed.append(batch)
        self._watch(batch)
        return batch

    def _watch(self, batch: PendingBatch) -> None:
        self._unfinished[batch] = None
        self._active[batch.queue] = None

    def close_all(self) -> None:
        """Close every open batch without waiting for the end of its linger time, for `flush`."""
        for queue in self._active:
            queue.close_open()

    def drain(self, now: float) -> list[PartitionQueue]:
        """Return the partitions whose first batch may be sent now, longest waiting time first.

        The batch stays in its queue until `start` removes it, because the partition may have no known leader, or the
        sender may have reached its limit of requests.
        """
        self.undrained = 0
        ready = []
        for queue in self._active:
            if queue.retry_at > now:
                continue
            if not queue.closed and queue.open is not None and self._lingered_at(queue.open) <= now:
                queue.close_open()
            if queue.closed and self._may_start(queue):
                ready.append(queue)
        return ready

    def _may_start(self, queue: PartitionQueue) -> bool:
        first, in_flight = queue.closed[0], queue.in_flight
        if self._is_full(queue, first):
            return False
        if not self._idempotence or not queue.sequences.renews(first.number):
            return True
        return not in_flight and (_may_resume(queue) or self.identity not in (None, queue.sequences.identity))

    def _is_full(self, queue: PartitionQueue, first: PendingBatch) -> bool:
        in_flight = queue.in_flight
        if not in_flight or in_flight[0].number > first.number:
            return False
        if any(_is_tried(batch) for batch in in_flight if batch.number < first.number):
            return True
        return _sent_through(queue, first) - in_flight[0].number >= self._unfinished_max

    def identity_wanted(self) -> bool:
        """Return whether a queue waits for an identity that is not allocated yet."""
        return self._idempotence and any(self._waiting_for_identity())

    def renewals(self) -> list[Renewal]:
        """Return the pending renewals of queues that need a newer identity than the producer's newest."""
        return [queue.sequences.renewal for queue in self._waiting_for_identity() if queue.sequences.renewal]

    def _waiting_for_identity(self) -> Iterator[PartitionQueue]:
        for queue in self._active:
            if self.identity in (None, queue.sequences.identity):
                first = _first(queue)
                if first is not None and queue.sequences.renews(first.number) and not _may_resume(queue):
                    yield queue

    def start(self, queue: PartitionQueue) -> PendingBatch:
        """Move the first closed batch of a partition to the batches in flight and return the batch."""
        assert self._may_start(queue), f"{queue.topic}-{queue.partition} has too many unfinished requests"
        batch = queue.closed[0]
        if batch.nbytes > queue.sizes.fitting_bytes and batch.record_count > 1 and not batch.attempts:
            self._divide(batch)
        self._stamp(batch)
        queue.closed.popleft()
        batch.attempts += 1
        batch.leads = not queue.in_flight or queue.in_flight[0].number > batch.number
        insort(queue.in_flight, batch, key=_NUMBER)
        # The partition moves to the end of the order, so that a partition with many batches cannot starve the others.
        del self._active[queue]
        self._active[queue] = None
        return batch

    def _stamp(self, batch: PendingBatch) -> None:
        """Assign a sequence to a batch; after a break, clear the sequences of the later batches."""
        if not self._idempotence:
            return
        queue = batch.queue
        if queue.sequences.renews(batch.number):
            if _may_resume(queue):
                queue.sequences.resume()
            else:
                assert self.identity is not None, (
                    "a queue renews its identity only when a new identity is allocated"
                )
                queue.sequences.begin(self.identity)
            for waiting in queue.closed:
                waiting.unstamp()
        if batch.stamp is None:
            batch.stamp = queue.sequences.stamp(batch.record_count)

    def retry(self, batch: PendingBatch, at: float) -> None:
        """Requeue an unacknowledged batch, ordered by number, to be sent again at time `at` or later."""
        queue = batch.queue
        queue.in_flight.remove(batch)
        queue.retry_at = max(queue.retry_at, at)
        place = 0
        while place < len(queue.closed) and queue.closed[place].number < batch.number:
            place += 1
        queue.closed.insert(place, batch)

    def cut(self, batch: PendingBatch, limit_bytes: int) -> bool:
        """Split a batch that is too large for its topic, and requeue the pieces; return False if no piece would fit."""
        encoded_bytes = 0 if batch.encoded is None else batch.encoded.nbytes
        fitting = fitting_bytes(batch.nbytes, encoded_bytes, limit_bytes)
        if fitting is None or batch.record_count == 1:
            return False
        batch.queue.sizes.fit(fitting)
        self.retry(batch, at=0.0)
        self._divide(batch)
        return True

    def _divide(self, batch: PendingBatch) -> None:
        queue = batch.queue
        pieces = batch.cut(queue.sizes.fitting_bytes)
        queue.place_behind(batch, pieces)
        for piece in pieces:
            self._watch(piece)

    def seeks_leaders(self) -> bool:
        """Return whether a partition waits for a new leader because its last leader failed."""
        return any(queue.left_by is not None for queue in self._active)

    def hurry(self, leader_of: Callable[[str, int], str | None], now: float) -> None:
        """End the back-off of partitions that have a new leader, since the previous leader caused the back-off."""
        for queue in self._active:
            if queue.left_by is not None and leader_of(queue.topic, queue.partition) not in (
                None,
                queue.left_by,
            ):
                queue.left_by = None
                queue.retry_at = min(queue.retry_at, now)

    def finish(self, batch: PendingBatch) -> None:
        """Remove an acknowledged batch and free its buffer space."""
        batch.queue.sequences.acknowledged(batch.number)
        batch.queue.left_by = None
        if batch.stamp is not None:
            _clear_up(batch)
        self._forget(batch)

    def give_up(self, batch: PendingBatch, cause: FairleadError) -> None:
        """Remove a permanently failed batch, waiting or in flight, and free its buffer space."""
        doubtful = batch.side_effect is SideEffect.MAYBE
        batch.queue.sequences.given_up(
            batch.number, batch.stamp, batch.record_count, cause, doubtful=doubtful
        )
        self._forget(batch)

    def _forget(self, batch: PendingBatch) -> None:
        queue = batch.queue
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        elif batch in queue.closed:
            queue.closed.remove(batch)
        self._unfinished.pop(batch, None)
        self.room += batch.room_bytes
        if queue.is_empty and not queue.in_flight:
            self._active.pop(queue, None)

    def doubtful(self, queue: PartitionQueue) -> list[PendingBatch]:
        """Return the waiting batches that may already be stored and therefore must not be sent under a new identity."""
        renewal = queue.sequences.renewal
        if renewal is None or not renewal.doubtful:
            return []
        return [
            batch
            for batch in queue.closed
            if batch.number > renewal.after and batch.side_effect is SideEffect.MAYBE
        ]

    def expire(self, now: float) -> list[PendingBatch]:
        """Remove and return waiting batches past their `delivery_timeout`; batches in flight wait for an answer."""
        expired: list[PendingBatch] = []
        for queue in self._active:
            while (batch := _first(queue)) is not None and self._expires_at(batch) <= now:
                queue.close_open()
                expired.append(queue.closed.popleft())
        return expired

    def take_all(self) -> list[PendingBatch]:
        """Remove and return every batch that is not in flight, because the producer stops sending."""
        self.close_all()
        taken: list[PendingBatch] = []
        for queue in self._active:
            taken.extend(queue.closed)
            queue.closed.clear()
        return taken

    def take_unidentified(self) -> list[PendingBatch]:
        """Remove and return every batch that waits for an identity, because no identity can be allocated."""
        taken: list[PendingBatch] = []
        for queue in list(self._waiting_for_identity()):
            queue.close_open()
            taken.extend(queue.closed)
            queue.closed.clear()
        return taken

    def next_deadline(self, now: float) -> float | None:
        """Return the next time at which the result of `drain` or `expire` changes; None if no change is due."""
        return min(self._deadlines(now), default=None)

    def _deadlines(self, now: float) -> Iterator[float]:
        for queue in self._active:
            first = _first(queue)
            if first is None:
                continue
            yield self._expires_at(first)
            lingered_at = now if queue.closed else self._lingered_at(first)
            ready_at = max(lingered_at, queue.retry_at)
            # A batch that is ready now waits for an answer or until another request may be sent, after which the sender
            # checks all partitions again.
            if ready_at > now and not self._is_full(queue, first):
                yield ready_at

    def encodable(self) -> PendingBatch | None:
        """Return a closed batch that can be encoded while earlier batches of its partition are in flight, or None."""
        for queue in self._active:
            if queue.closed and queue.in_flight:
                first = queue.closed[0]
                if first.nbytes > queue.sizes.fitting_bytes or first.side_effect is SideEffect.MAYBE:
                    # The batch will be cut before it is sent, or might not be sent at all.
                    continue
                if first.encoded is None and not (self._idempotence and queue.sequences.renews(first.number)):
                    self._stamp(first)
                    return first
        return None

    def seconds_left(self, batches: Sequence[PendingBatch], now: float) -> float:
        """Return the seconds until the last of these batches reaches its delivery timeout."""
        return max(map(self._expires_at, batches)) - now

    def is_expired(self, batch: PendingBatch, at: float) -> bool:
        """Return whether a batch is past its delivery timeout at time `at`."""
        return self._expires_at(batch) <= at

    def _lingered_at(self, batch: PendingBatch) -> float:
        return batch.created_at + self._linger_seconds

    def _expires_at(self, batch: PendingBatch) -> float:
        return batch.created_at + self._timeout_seconds


def _is_tried(batch: PendingBatch) -> bool:
    """Return whether later batches wait for the outcome of a batch in flight.

    A batch larger than the topic's known limit is likely to be refused, and a broker would then delay each later batch
    for a second. An attempt before a cut may have stored the whole batch; in this case the pieces are refused, and
    later pieces must not be sent.
    """
    if batch.nbytes > batch.queue.sizes.fitting_bytes:
        return True
    return batch.side_effect is SideEffect.MAYBE and batch.attempts == 1


def _clear_up(piece: PendingBatch) -> None:
    """Mark the other pieces as not stored: a stored piece proves that the batch was not stored before it was cut.

    A stored piece proves nothing about a sibling piece that was cut again after an attempt that may have stored the
    sibling.
    """
    rest = piece.rest
    while rest is not None and (rest.attempts or rest.side_effect is SideEffect.MAYBE):
        if not rest.attempts and rest.doubt is piece.doubt:
            rest.side_effect = SideEffect.NONE
        rest = rest.rest


def _may_resume(queue: PartitionQueue) -> bool:
    """Return whether the batches after a break may keep their identity, because no broker can have stored them."""
    renewal = queue.sequences.renewal
    if renewal is None or renewal.resume_at is None:
        return False
    return all(batch.side_effect is SideEffect.NONE for batch in queue.closed)


def _sent_through(queue: PartitionQueue, first: PendingBatch) -> int:
    """Return the number of the last batch that the broker may store once the first waiting batch is sent.

    Batches after a piece may have been sent before the piece. The broker can store such batches right after the piece,
    and the partition would then forget the batches that precede the piece.
    """
    number, under_way, waiting = first.number, {batch.number for batch in queue.in_flight}, 1
    while True:
        if number + 1 in under_way:
            number += 1
        elif waiting < len(queue.closed) and _follows(queue.closed[waiting], number):
            number, waiting = number + 1, waiting + 1
        else:
            return number


def _follows(batch: PendingBatch, number: int) -> bool:
    return batch.number == number + 1 and batch.attempts > 0


def _first(queue: PartitionQueue) -> PendingBatch | None:
    return queue.closed[0] if queue.closed else queue.open
