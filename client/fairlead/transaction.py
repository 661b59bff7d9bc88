"""A transaction of a producer: readers of committed records see all of its records, in several topics, or none.

    async with Producer(url, transactional="billing") as producer:
        async with producer.transaction() as transaction:
            await transaction.send("orders", b"paid", key=b"7")
            await transaction.send("ledger", b"+10", key=b"7")

Leaving the block commits the transaction; an exception in the block aborts it.
"""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from fairlead.errors import FairleadError
from fairlead.producing.delivery import BatchDelivery, Delivery, RecordMetadata
from fairlead.producing.transactions import HandedOver, JointCommit, OpenTransaction
from fairlead.records import Headers

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.consumer import Consumer


class TransactionalProducer(Protocol):
    """Interface of `Producer` for its transactions."""

    async def _begin_transaction(self) -> OpenTransaction: ...

    async def _commit_transaction(self) -> None: ...

    async def _abort_transaction(self) -> None: ...

    async def _resolve_transaction(self) -> None: ...

    async def _hand_over_transaction(self, *, is_followed: bool) -> HandedOver: ...

    def _join_offsets(self, joint_commit: JointCommit) -> None: ...

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Send one record; see `Producer.send`."""
        ...

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement; see `Producer.send_and_wait`."""
        ...

    async def send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> list[BatchDelivery]:
        """Send a table; see `Producer.send_batch`."""
        ...


class Transaction:
    """One transaction, opened with `async with producer.transaction()`.

    A producer has one open transaction at a time.
    """

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self._open: OpenTransaction | None = None
        self._is_handed_over = False

    @property
    def id(self) -> str | None:
        """Id of the transaction, such as `17.4`; None before the `async with` block begins."""
        return None if self._open is None else self._open.id

    @property
    def is_committed(self) -> bool | None:
        """Whether the transaction was committed; None before the end of the block, and while the outcome is unknown.

        If the commit was cancelled or raised `CommitUnknownError`, the producer determines the outcome before it begins
        the next transaction, and when it is closed.
        """
        return None if self._open is None else self._open.is_committed

    async def __aenter__(self) -> Self:
        self._open = await self._producer._begin_transaction()  # noqa: SLF001 - two halves of one object
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_handed_over:
            return
        if error is None:
            await self._producer._commit_transaction()  # noqa: SLF001 - two halves of one object
            return
        try:
            await self._producer._abort_transaction()  # noqa: SLF001 - two halves of one object
        except FairleadError as failed:
            error.add_note(f"the abort of transaction {self.id} failed: {failed}")

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Append one record to the transaction, as `Producer.send` does.

        The commit waits for the acknowledgement of the record.
        """
        return await self._producer.send(topic, value, key, headers, timestamp, partition)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement; see `Producer.send_and_wait`."""
        return await self._producer.send_and_wait(topic, value, key, headers, timestamp, partition)

    async def send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> list[BatchDelivery]:
        """Send a table in the transaction; see `Producer.send_batch`."""
        return await self._producer.send_batch(topic, data, partition)

    async def _hand_over(self, *, is_followed: bool) -> HandedOver:
        """Wait until all records are acknowledged, and leave the decision to another program, for connectors.

        Leaving the block neither commits nor aborts the transaction. `is_followed`: whether the other program decides
        the transaction before this producer begins its next transaction, which then needs no begin request. Raises
        `TransactionAbortedError` if a record was not acknowledged.
        """
        handed_over = await self._producer._hand_over_transaction(is_followed=is_followed)  # noqa: SLF001 - two halves
        self._is_handed_over = True
        return handed_over

    async def commit_offsets(self, consumer: Consumer) -> None:
        """Commit, with the transaction, the group's offsets after all records that a consumer has handed out.

        Readers of the group's offsets see the offsets if and only if the transaction is committed. The consumer must
        be in a group and must have been opened with `commit="manual"`. A transaction contains the offsets of only one
        consumer; a later call replaces the offsets of an earlier call. If a partition was revoked in the meantime, the
        transaction is aborted, and leaving the block raises `MemberFencedError`. After an abort, the consumer must
        return to its committed offsets; `exactly_once` does this.
        """
        self._producer._join_offsets(consumer._joint_commit())  # noqa: SLF001 - parts of one exchange
