"""The blocking producer, which waits only for buffer space and metadata; see `fairlead.Producer`.

A queue passes records to the event loop, many at a time: a call into the loop for each record would cost twenty times
as much as sending the record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from fairlead.blocking.consumer import Consumer
from fairlead.blocking.facade import Facade, blocking, from_loop, same_arguments
from fairlead.blocking.loop_thread import LoopThread, known
from fairlead.producer import Producer as AsyncProducer
from fairlead.producing.delivery import BatchDelivery as AsyncBatchDelivery
from fairlead.producing.delivery import BatchMetadata, RecordMetadata
from fairlead.producing.delivery import Delivery as AsyncDelivery
from fairlead.producing.holding import ProducerMetrics
from fairlead.producing.transactions import HandedOver, JointCommit, OpenTransaction, SendCommit
from fairlead.records import Headers
from fairlead.tracing import ProducerTracing
from fairlead.transaction import Transaction as AsyncTransaction
from fairlead_api.bodies.transactions import TransactionOffsets

if TYPE_CHECKING:
    import pyarrow as pa

QUEUED_MAX: Final = 8192
"""Maximum number of queued records that are not yet in their batches, beyond which `send` waits; the buffer has a
separate limit."""


class Delivery:
    """The acknowledgement of one record: `result()` waits for the `RecordMetadata`, or raises the error."""

    __slots__ = ("_inner", "_producer", "error", "is_seen")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._inner: AsyncDelivery | None = None
        self.error: Exception | None = None
        """Error that prevented the record from being sent; None if no error has occurred."""
        self.is_seen = False
        """Whether the error has been raised to a caller."""

    @property
    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self.error is not None or (self._inner is not None and self._inner.done)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait at most `timeout` seconds for the acknowledgement. Raises TimeoutError, or the delivery's error."""
        return self._producer.wait_for(self, timeout)

    def sent(self, inner: AsyncDelivery) -> None:
        """Set the async delivery of the record, which is now in its batch."""
        self._inner = inner

    def failed(self, error: Exception) -> None:
        """Set the error that prevented the record from being sent."""
        self.error = error

    async def outcome(self) -> RecordMetadata:
        """Wait for the outcome of a record that is in its batch or has failed."""
        if self.error is not None:
            self.is_seen = True
            raise self.error.with_traceback(None)
        assert self._inner is not None, "the record is in its batch or has failed"
        return await self._inner


class BatchDelivery:
    """The acknowledgement for one piece of a table: `result()` waits for the `BatchMetadata`."""

    __slots__ = ("_inner", "_producer")

    def __init__(self, producer: Producer, inner: AsyncBatchDelivery) -> None:
        self._producer = producer
        self._inner = inner

    @property
    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._inner.done

    @property
    def partition(self) -> int:
        """The partition that the piece was sent to."""
        return self._inner.partition

    @property
    def record_count(self) -> int:
        """Number of records in the piece."""
        return self._inner.record_count

    def result(self, timeout: float | None = None) -> BatchMetadata:
        """Wait at most `timeout` seconds for the acknowledgement. Raises TimeoutError, or the delivery's error."""
        return self._producer.wait_for_batch(self._inner, timeout)


_Record = tuple[Delivery, tuple[Any, ...]]


class Producer(Facade[AsyncProducer]):
    """Blocking variant of `fairlead.Producer`, for programs without an event loop.

    The producer is opened with `with`; leaving the `with` block flushes the producer.
    """

    @same_arguments(AsyncProducer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncProducer(*args, **kwargs))
        self._tracing = ProducerTracing.at_hand()
        self._is_transactional = kwargs.get("transactional", False) is not False
        self._queued: deque[_Record] = deque()
        self._topics: set[str] = set()
        self._filling: asyncio.Task[None] | None = None
        self._is_woken = False
        self._failures: list[Delivery] = []

    def start(self) -> Self:
        """Open the connections, as entering the `with` block does. Raises `SettingError` while the producer is open."""
        super().start()
        # The previous event loop has ended, and records that were queued after its end were refused.
        self._queued.clear()
        self._is_woken = False
        return self

    send_and_wait = blocking(AsyncProducer.send_and_wait)
    refresh_metadata = blocking(AsyncProducer.refresh_metadata)

    @property
    def metrics(self) -> ProducerMetrics:
        """Number and length of the waits that brokers have requested because of quotas."""
        return self._client.metrics

    def transaction(self) -> Transaction:
        """Return the next transaction for `with`; leaving the block commits the transaction, an exception aborts it.

        Raises the errors of `fairlead.Producer.transaction`.
        """
        self._client._check_transactional()  # noqa: SLF001 - parts of one producer
        return Transaction(self, AsyncTransaction(ProducerElsewhere(self, self._thread)), self._thread)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Send one record and return its delivery.

        The call waits only for buffer space, and for the metadata of a new topic. The arguments are those of the async
        producer. `send` raises errors of the first record to a topic, and errors in the type of key or value. Errors of
        later records are raised by `result` and by `flush`.
        """
        self._thread.check_open()
        if self._is_transactional:
            self._client._check_open()  # noqa: SLF001 - parts of one producer
        delivery = Delivery(self)
        if headers:
            # The loop reads the record later, when the caller may already have changed the list.
            headers = tuple(headers)
        if self._tracing is not None:
            # The span that is active in the caller's thread is not active on the event loop.
            headers = self._tracing.created(topic, headers)
        record = (topic, value, key, headers, timestamp, partition)
        plain = value.__class__ is bytes and (key is None or key.__class__ is bytes)
        if topic not in self._topics or not plain:
            self._thread.run(self._send_now(delivery, record))
            self._topics.add(topic)
            return delivery
        self._queued.append((delivery, record))
        if not self._is_woken:
            self._is_woken = True
            self._thread.soon(self._fill_batches)
        if len(self._queued) > QUEUED_MAX:
            self._thread.run(self._handed_over())
        return delivery

    def send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> list[BatchDelivery]:
        """Send a table as the async producer does; each delivery has a method `result`."""
        deliveries = self._thread.run(self._send_batch(topic, data, partition))
        return [BatchDelivery(self, delivery) for delivery in deliveries]

    def flush(self) -> None:
        """Send all batches now and wait for their outcomes.

        Raises an `ExceptionGroup` with the failures since the last flush that no `result()` has raised.
        """
        self._thread.run(self._flush())

    def abort(self) -> None:
        """Close without a flush, as the async producer does. Records that are still queued are not sent."""
        self._end(self._abort)

    def wait_for(self, delivery: Delivery, timeout: float | None) -> RecordMetadata:
        """Wait for a delivery of this producer, even after the producer is closed."""
        if delivery.done and not self._thread.running:
            return known(delivery.outcome())
        return self._thread.run(self._outcome(delivery), timeout)

    def wait_for_batch(self, delivery: AsyncBatchDelivery, timeout: float | None) -> BatchMetadata:
        """Wait for a delivery of this producer, even after the producer is closed."""

        async def outcome() -> BatchMetadata:
            """Wait for the delivery on the loop."""
            return await delivery

        if delivery.done and not self._thread.running:
            return known(outcome())
        return self._thread.run(outcome(), timeout)

    # -- methods that run on the event loop

    async def _begin_transaction(self) -> OpenTransaction:
        # A record that is still queued belongs to an earlier transaction or to none, and is refused.
        await self._handed_over()
        transaction = await self._client._begin_transaction()  # noqa: SLF001 - parts of one producer
        self._failures.clear()
        return transaction

    async def _commit_transaction(self) -> None:
        try:
            await self._queued_sent()
        except Exception as error:
            await self._client._abort_after(error)  # noqa: SLF001 - parts of one producer
            raise
        await self._client._commit_transaction()  # noqa: SLF001 - parts of one producer

    async def _hand_over_transaction(self, *, is_followed: bool) -> HandedOver:
        await self._queued_sent()
        return await self._client._hand_over_transaction(is_followed=is_followed)  # noqa: SLF001 - parts of one producer

    async def _abort_transaction(self) -> None:
        try:
            await self._client._abort_transaction()  # noqa: SLF001 - parts of one producer
        finally:
            # Records that are still queued are refused, and no later call reports them.
            await self._handed_over()
            self._failures.clear()

    def _fill_batches(self) -> None:
        self._is_woken = False
        if self._filling is None or self._filling.done():
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def _fill(self) -> None:
        queued, send = self._queued, self._client.send
        while queued:
            delivery, record = queued.popleft()
            try:
                delivery.sent(await send(*record))
            except Exception as error:  # noqa: BLE001 - the delivery raises the error to its reader
                delivery.failed(error)
                self._failures.append(delivery)

    async def _handed_over(self) -> None:
        """Wait until every queued record has been added to its batch."""
        self._fill_batches()
        assert self._filling is not None, "a task now fills the batches"
        await asyncio.shield(self._filling)

    async def _send_now(self, delivery: Delivery, record: tuple[Any, ...]) -> None:
        await self._handed_over()
        delivery.sent(await self._client.send(*record))

    async def _send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, partition: int | None
    ) -> list[AsyncBatchDelivery]:
        await self._handed_over()
        return await self._client.send_batch(topic, data, partition)

    async def _outcome(self, delivery: Delivery) -> RecordMetadata:
        await self._handed_over()
        return await delivery.outcome()

    async def _flush(self) -> None:
        await self._handed_over()
        try:
            await self._client.flush()
        except ExceptionGroup as group:
            self._raise_failures(group.message, group.exceptions)
            raise
        self._raise_failures("records could not be sent", ())

    async def _queued_sent(self) -> None:
        """Add queued records to their batches. Raises the error of the first record that could not be sent."""
        await self._handed_over()
        failures, self._failures = self._failures, []
        if failures:
            error = failures[0].error
            assert error is not None, "the delivery has failed"
            raise error.with_traceback(None)

    async def _abort(self) -> None:
        await self._client.abort()
        # Queued records are refused now, so that calls in other threads stop waiting for them.
        await self._handed_over()

    def _raise_failures(self, message: str, others: tuple[Exception, ...]) -> None:
        """Raise the errors of records that failed before they were added to a batch, together with `others`."""
        failures, self._failures = self._failures, []
        errors = [delivery.error for delivery in failures if not delivery.is_seen and delivery.error]
        if errors:
            raise ExceptionGroup(message, [*errors, *others])

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._handed_over()
        try:
            await self._client.__aexit__(kind, error, trace)
        except ExceptionGroup as group:
            self._raise_failures(group.message, group.exceptions)
            raise
        if error is None:
            self._raise_failures("records could not be sent", ())


class ProducerElsewhere:
    """The async producer of a blocking producer, for transactions that run on the event loop of any client."""

    def __init__(self, producer: Producer, caller: LoopThread) -> None:
        """`caller` is the thread of the event loop on which the transactions run."""
        self._producer = producer
        self._thread = producer._thread  # noqa: SLF001 - parts of one exchange
        self._client = producer._client  # noqa: SLF001 - parts of one exchange
        self._caller = caller

    async def _begin_transaction(self) -> OpenTransaction:
        return await self._thread.run_from_loop(self._producer._begin_transaction())  # noqa: SLF001

    async def _commit_transaction(self) -> None:
        await self._thread.run_from_loop(self._producer._commit_transaction())  # noqa: SLF001

    async def _abort_transaction(self) -> None:
        await self._thread.run_from_loop(self._producer._abort_transaction())  # noqa: SLF001

    async def _hand_over_transaction(self, *, is_followed: bool) -> HandedOver:
        handed_over = self._producer._hand_over_transaction(is_followed=is_followed)  # noqa: SLF001
        return await self._thread.run_from_loop(handed_over)

    async def _resolve_transaction(self) -> None:
        await self._thread.run_from_loop(self._client._resolve_transaction())  # noqa: SLF001

    def _join_offsets(self, joint_commit: JointCommit) -> None:
        """Commit the open transaction with a function that runs on the caller's event loop."""

        async def commit(send: SendCommit) -> None:
            def send_on_loop(offsets: TransactionOffsets | None) -> Coroutine[Any, Any, None]:
                return self._thread.run_from_loop(send(offsets))

            await self._caller.run_from_loop(joint_commit(send_on_loop))

        self._client._join_offsets(commit)  # noqa: SLF001 - parts of one exchange

    send = from_loop(AsyncProducer.send)
    send_and_wait = from_loop(AsyncProducer.send_and_wait)
    send_batch = from_loop(AsyncProducer.send_batch)


class Transaction:
    """One transaction, opened with `with producer.transaction()`; a producer has one open transaction at a time."""

    def __init__(self, producer: Producer, inner: AsyncTransaction, thread: LoopThread) -> None:
        """`thread` runs the async transaction `inner`."""
        self._producer = producer
        self._inner = inner
        self._thread = thread

    @property
    def id(self) -> str | None:
        """Id of the transaction, such as `17.4`; None before the `with` block begins."""
        return self._inner.id

    @property
    def is_committed(self) -> bool | None:
        """Whether the transaction was committed; see `fairlead.Transaction.is_committed`."""
        return self._inner.is_committed

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._thread.run(self._inner.__aexit__(kind, error, trace))

    def _hand_over(self, *, is_followed: bool) -> HandedOver:
        """Leave the decision to another program, as the async transaction does, for connectors."""
        return self._thread.run(self._inner._hand_over(is_followed=is_followed))  # noqa: SLF001 - the same transaction

    def send(
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
        return self._producer.send(topic, value, key, headers, timestamp, partition)

    def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement; see `Producer.send_and_wait`."""
        return self._producer.send_and_wait(topic, value, key, headers, timestamp, partition)

    def send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> list[BatchDelivery]:
        """Send a table in the transaction; see `Producer.send_batch`."""
        return self._producer.send_batch(topic, data, partition)

    def commit_offsets(self, consumer: Consumer) -> None:
        """Commit, with the transaction, the group's offsets after all records that a consumer has handed out.

        The rules are those of `fairlead.Transaction.commit_offsets`.
        """
        thread, client = consumer._thread, consumer._client  # noqa: SLF001 - parts of one exchange
        elsewhere = ProducerElsewhere(self._producer, thread)

        async def join() -> None:
            """Read the offsets on the event loop of the consumer."""
            elsewhere._join_offsets(client._joint_commit())  # noqa: SLF001 - parts of one exchange

        thread.run(join())
