"""Loop that reads records, processes them and sends the results, so that each record takes effect exactly once.

    async with (
        Consumer(url, group="pricing", topics="orders", commit="manual", isolation="read_committed") as consumer,
        Producer(url, transactional="pricing-1") as producer,
    ):
        async for transaction in exactly_once(consumer, producer):
            async with transaction:
                async for batch in transaction:
                    for record in batch:
                        await transaction.send("priced", price(record.value), key=record.key)

Each transaction contains the results of the batches and the group's offsets after these batches. The cluster stores
both the results and the offsets, or neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

from fairlead import clock
from fairlead.errors import (
    CommitUnknownError,
    DeliveryTimeoutError,
    FairleadError,
    MemberFencedError,
    MemberNotFoundError,
    ProducerFencedError,
    RefreshError,
    RetryError,
    SettingError,
    StaleMemberEpochError,
    TransactionAbortedError,
    TransactionNotFoundError,
    UnreachableError,
)
from fairlead.records import ConsumerBatch
from fairlead.settings import Backoff, Duration, seconds_of
from fairlead.transaction import Transaction, TransactionalProducer

if TYPE_CHECKING:
    from fairlead.consumer import Consumer
    from fairlead.producer import Producer

Retried: TypeAlias = type[Exception] | tuple[type[Exception], ...]
_LOST: Final = (MemberFencedError, MemberNotFoundError, StaleMemberEpochError, TransactionNotFoundError)
"""Refusals of a commit after which this consumer, or the next owner, reads the records again."""
_PASSING: Final = (UnreachableError, DeliveryTimeoutError, RetryError, RefreshError)
"""Causes of an abort that may be gone at the next attempt."""

_BACKOFF: Final = Backoff(seconds_initial=0.05, seconds_max=2.0)


class ConsumingTransaction(Transaction):
    """One transaction of `exactly_once`: open it with `async with`, and iterate over its batches.

    The iteration ends after the time `every`, and leaving the block commits the results with the offsets of the
    batches. Every batch that the iteration has handed out counts as processed.
    """

    def __init__(
        self, consumer: Consumer, producer: TransactionalProducer, seconds: float, retry: Retried
    ) -> None:
        super().__init__(producer)
        self._consumer = consumer
        self._seconds = seconds
        self._retry = retry

    async def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        """Iterate over batches, from the first batch that arrives until the transaction's time is up."""
        deadline: float | None = None
        while True:
            left = None
            if deadline is not None:
                left = timedelta(seconds=max(deadline - clock.monotonic(), 0.0))
            batch = await self._consumer.next_batch(left)
            if batch is None:
                return
            if deadline is None:
                deadline = clock.monotonic() + self._seconds
                # From now on, revoked partitions are released only after the transaction.
                self._consumer._hold()  # noqa: SLF001 - parts of one exchange
            yield batch
            if clock.monotonic() >= deadline:
                return

    async def __aexit__(  # type: ignore[override]
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if error is None:
                await self.commit_offsets(self._consumer)
            await super().__aexit__(kind, error, trace)
        except Exception as failure:
            await self._rewind(failure)
            if not _may_pass(failure):
                raise
            return True
        finally:
            self._consumer._end_hold()  # noqa: SLF001 - parts of one exchange
        if error is None:
            return False
        if not isinstance(error, Exception):
            # The next loop of the consumer returns to the committed offsets.
            return False
        await self._rewind(error)
        return _may_pass(error) or isinstance(error, self._retry)

    async def _rewind(self, cause: BaseException) -> None:
        try:
            # While the outcome of the transaction is unknown, its commit can still change the committed offsets.
            await self._producer._resolve_transaction()  # noqa: SLF001 - parts of one exchange
            await self._consumer._rewind()  # noqa: SLF001 - parts of one exchange
        except FairleadError as failed:
            cause.add_note(f"the consumer did not return to its committed offsets: {failed}")
            raise cause from failed


def exactly_once(
    consumer: Consumer, producer: Producer, *, every: Duration = "100ms", retry: Retried = ()
) -> AsyncIterator[ConsumingTransaction]:
    """Yield transactions that commit results together with the offsets of the records from which they were computed.

    - consumer: consumer in a group, opened with `commit="manual"` and `isolation="read_committed"`.
    - producer: producer opened with `transactional`.
    - every: maximum time from the first batch of a transaction to its commit.
    - retry: exceptions of the block after which the block runs again with the same records; after every other exception
      the transaction is aborted and the exception is raised.

    A block whose transaction is aborted, because a broker failed or a partition was revoked, runs again with the
    records after the committed offsets. Raises `SettingError` for other settings of the consumer or the producer.
    """
    return consuming_transactions(consumer, producer, seconds_of(every, "every"), retry)


async def consuming_transactions(
    consumer: Consumer, producer: TransactionalProducer, seconds: float, retry: Retried
) -> AsyncIterator[ConsumingTransaction]:
    """Yield the transactions of `exactly_once`."""
    # The offsets are read only when the outcome of the previous loop's last transaction is known.
    await producer._resolve_transaction()  # noqa: SLF001 - parts of one exchange
    await consumer._begin_exactly_once()  # noqa: SLF001 - parts of one exchange
    failures = 0
    while True:
        transaction = ConsumingTransaction(consumer, producer, seconds, retry)
        yield transaction
        if transaction.id is None:
            raise SettingError("transaction", "not entered", "async with transaction, in every round")
        if transaction.is_committed:
            failures = 0
        else:
            failures += 1
            await asyncio.sleep(_BACKOFF.seconds(failures, clock.chance()))  # noqa: TID251 - the pause before a retry


def _may_pass(error: Exception) -> bool:
    """Return whether the block may succeed when it runs again, with the records after the committed offsets."""
    if isinstance(error, TransactionAbortedError):
        # After a partition has refused a batch as fenced, the abort succeeds only if no other producer has the name.
        return error.__cause__ is None or isinstance(error.__cause__, (*_PASSING, ProducerFencedError))
    return isinstance(error, (*_LOST, *_PASSING, CommitUnknownError))
