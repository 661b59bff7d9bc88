"""Produce calls: validate the batches, queue them at the partitions, and wait until all batches have outcomes.

A refusal before a batch is queued is definite: no record of the refused batch is stored. Batches of one call succeed
and fail independently. The bytes of batches that wait to be appended are limited across all partitions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from fairlead_api.batch.header import HEADER_BYTES, BatchHeader, Codec
from fairlead_api.batch.validation import KEYED_EXTENSIONS, NO_EXTENSIONS, validate_produced
from fairlead_api.bodies.requests import TIMEOUT_MS_DEFAULT
from fairlead_api.identifiers import Acks, ProducerEpoch
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.time_limits import TimeLimits
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.producer_order import PendingAppend, PendingProduce
from fairlead_broker.runtime.meters import BrokerMeters
from fairlead_broker.runtime.requests import AppendResult, KeyedRequest

CODEC_AT = 37
"""Index of the byte that contains the compression codec of a batch."""


class ProduceItem(msgspec.Struct, frozen=True, gc=False):
    """One batch for one leader replica, as sent by the producer."""

    partition: LeaderReplica
    batch: memoryview
    keyed: KeyedRequest | None = None
    """Idempotency key of the request that contained the batch; the batch's extension contains the same key."""
    session: ProducerEpoch | None = None
    """First epoch of the session of a Kafka client whose sequences continue from one transaction to the next."""


class ByteBudget:
    """Bytes of batches that wait to be appended, with a limit that only a single batch may exceed."""

    __slots__ = ("_waiting", "bytes_max", "taken")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def waiting(self) -> int:
        """Number of callers that wait for room."""
        return len(self._waiting)

    async def wait_for_room(self, nbytes: int) -> None:
        """Return once there is room for a number of bytes; the caller must take the bytes before its next await."""
        while not self.has_room(nbytes):
            returned = asyncio.get_running_loop().create_future()
            self._waiting.append(returned)
            try:
                await returned
            finally:
                self._waiting.remove(returned)

    def take(self, nbytes: int) -> bool:
        """Take bytes if there is room; return whether the bytes were taken.

        If no bytes are in use, a batch of any size is accepted, so that a large batch cannot wait forever.
        """
        if not self.has_room(nbytes):
            return False
        self.taken += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """Return taken bytes to the budget."""
        self.taken -= nbytes
        assert self.taken >= 0, "more bytes were returned than taken"
        for returned in self._waiting:
            if not returned.done():
                returned.set_result(None)

    def has_room(self, nbytes: int) -> bool:
        """Return whether `take` would take bytes now."""
        return not self.taken or self.taken + nbytes <= self.bytes_max


class Producing:
    """Executes produce calls on partitions."""

    __slots__ = (
        "_budget",
        "_calls",
        "_clock",
        "_idle",
        "_limits",
        "_meters",
        "_on_loop_bytes_max",
        "_pool",
        "_stopping",
        "_takes_transactions",
        "_timeout_seconds_max",
    )

    def __init__(
        self,
        clock: Clock,
        pool: DiskPool,
        budget: ByteBudget,
        meters: BrokerMeters,
        *,
        on_loop_bytes_max: int,
        timeout_seconds_max: float,
        takes_transactions: Callable[[], bool],
    ) -> None:
        """`pool` validates compressed batches, and batches beyond the first `on_loop_bytes_max` bytes of a call."""
        self._clock = clock
        self._pool = pool
        self._budget = budget
        self._meters = meters
        self._calls: dict[PendingProduce, None] = {}
        """Calls in progress, in order of arrival."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._on_loop_bytes_max = on_loop_bytes_max
        self._timeout_seconds_max = timeout_seconds_max
        self._limits = TimeLimits(min(TIMEOUT_MS_DEFAULT / 1000, timeout_seconds_max))
        self._takes_transactions = takes_transactions

    async def produce(
        self,
        items: Sequence[ProduceItem],
        *,
        acks: Acks,
        timeout_seconds: float,
        queued: Callable[[], None] | None = None,
    ) -> list[AppendResult | ProblemError]:
        """Store each batch as the acks require; return one result or problem for each item, in order.

        `queued` is called once every batch is queued at its partition or refused, so that the batches of a later call
        are stored after the batches of this call.
        """
        if self._stopping:
            raise refusals.shutting_down()
        call = PendingProduce(len(items))
        self._calls[call] = None
        self._idle.clear()
        try:
            await self._start(call, items, acks)
            if queued is not None:
                queued()
            answers = await call.wait(min(timeout_seconds, self._timeout_seconds_max), self._limits)
        finally:
            self._calls.pop(call, None)
            if not self._calls:
                self._idle.set()
        self._meters.produced(answers)
        return answers

    async def stop(self, seconds: float) -> None:
        """Refuse new calls; fail calls that are still running after the time limit.

        The batches of failed calls may still be stored.
        """
        self._stopping = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            for call in tuple(self._calls):
                call.refuse(refusals.shutting_down)

    async def _start(self, call: PendingProduce, items: Sequence[ProduceItem], acks: Acks) -> None:
        elsewhere: list[tuple[int, ProduceItem]] = []
        on_loop_bytes = self._on_loop_bytes_max
        for slot, item in enumerate(items):
            batch = item.batch
            if len(batch) <= on_loop_bytes and not _compressed(batch):
                on_loop_bytes -= len(batch)
                self._take(call, slot, item, acks)
            else:
                elsewhere.append((slot, item))
        if elsewhere:
            await self._validate_in_pool(call, elsewhere, acks)

    async def _validate_in_pool(
        self, call: PendingProduce, items: list[tuple[int, ProduceItem]], acks: Acks
    ) -> None:
        # Bytes are counted before a batch waits for a thread, because such batches are large or become large when
        # decompressed.
        reserved = deque(
            (slot, item, self._pool.submit(self._validate, item, acks))
            for slot, item in items
            if self._reserve(call, slot, item, acks)
        )
        try:
            while reserved:
                slot, item, future = reserved[0]
                try:
                    header = await future
                except ProblemError as problem:
                    call.settle(slot, problem)
                    self._budget.give_back(len(item.batch))
                else:
                    self._check_again(call, slot, item, acks)
                    self._enqueue(call, slot, item, acks, header)
                reserved.popleft()
        finally:
            for _, item, _ in reserved:
                self._budget.give_back(len(item.batch))

    def _take(self, call: PendingProduce, slot: int, item: ProduceItem, acks: Acks) -> None:
        """Queue a batch at its partition or settle the batch with a refusal, without an await."""
        if not self._reserve(call, slot, item, acks):
            return
        try:
            header = self._validate(item, acks)
        except ProblemError as problem:
            call.settle(slot, problem)
            self._budget.give_back(len(item.batch))
        else:
            self._enqueue(call, slot, item, acks, header)

    def _reserve(self, call: PendingProduce, slot: int, item: ProduceItem, acks: Acks) -> bool:
        """Reserve the bytes of a batch in the budget; return False after settling the batch with a refusal."""
        partition = item.partition
        try:
            partition.check_writable(acks)
            if not self._budget.take(len(item.batch)):
                waiting = f"{self._budget.taken} bytes wait to be appended"
                raise refusals.overloaded(waiting)
        except ProblemError as problem:
            call.settle(slot, problem)
            return False
        return True

    @staticmethod
    def _check_again(call: PendingProduce, slot: int, item: ProduceItem, acks: Acks) -> None:
        """Settle a batch with a refusal if its partition began to refuse batches during the validation."""
        partition = item.partition
        try:
            partition.check_writable(acks)
        except ProblemError as problem:
            call.settle(slot, problem)

    def _enqueue(
        self, call: PendingProduce, slot: int, item: ProduceItem, acks: Acks, header: BatchHeader
    ) -> None:
        """Queue a batch with reserved bytes at its partition, unless the batch is already answered."""
        partition = item.partition
        assert header.total_bytes == len(item.batch), "a valid batch is complete"
        # Only the first answer to a batch counts. A stop may already have answered that the batch is not stored.
        if call.answers[slot] is not None:
            self._budget.give_back(header.total_bytes)
            return
        append = PendingAppend(call, slot, item.batch, header, acks, item.keyed, session=item.session)
        call.appends.append((partition.leadership, append))
        partition.enqueue(append)

    def _validate(self, item: ProduceItem, acks: Acks) -> BatchHeader:
        partition = item.partition
        own = NO_EXTENSIONS if item.keyed is None else KEYED_EXTENSIONS
        header = validate_produced(item.batch, partition.validation_limits, self._clock.now_us(), own)
        if header.is_transactional:
            self._check_transactional(acks)
        return header

    def _check_transactional(self, acks: Acks) -> None:
        """Raise the problem for a transactional batch that other brokers might not understand, or might lose."""
        if not self._takes_transactions():
            raise ProblemError(
                "malformed_batch",
                "attribute bit 0 (transactional) is set; transactions need feature level 2 of the cluster",
            )
        if acks is not Acks.ALL:
            raise ProblemError(
                "unknown_option",
                f"acks={acks.value} is not supported for records of a transaction; supported: all",
                data={"parameter": "acks", "value": acks.value, "supported": ["all"]},
            )


def _compressed(batch: memoryview) -> bool:
    return len(batch) >= HEADER_BYTES and batch[CODEC_AT] != Codec.NONE
