"""The public producer, which sends records and tables and returns deliveries.

    async with Producer("http://127.0.0.1:9520") as producer:
        delivery = await producer.send("flights", b"UA1545", key=b"UA")
        metadata = await delivery

`send` waits only for buffer space, and `await delivery` waits for the acknowledgement. Leaving the block flushes the
producer, even after an exception: no record is dropped silently. This module chooses the partition of each record
(`TopicRoute`) and enforces the memory bound; the accumulator builds batches, and the sender sends requests and retries.
The module is a single file because half of it documents the public arguments.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from fairlead import clock
from fairlead.clock import now_ns
from fairlead.connection.metadata import (
    MetadataCache,
    Picture,
    create_topic,
    creates_topics,
    partition_not_found,
)
from fairlead.connection.transport import Transport
from fairlead.credentials import TokenProvider
from fairlead.errors import (
    BatchTooLargeError,
    ClosedError,
    CommitUnknownError,
    FairleadError,
    FencedError,
    ProducerFencedError,
    SettingError,
    TopicNotFoundError,
    error_of,
    second_start,
)
from fairlead.producing.accumulator import UNDRAINED_MAX, Accumulator
from fairlead.producing.delivery import BatchDelivery, Delivery, RecordMetadata, outcome
from fairlead.producing.fitting import BatchSizes
from fairlead.producing.holding import Holding, ProducerMetrics
from fairlead.producing.pending_batch import (
    RECORD_OVERHEAD_BYTES,
    PartitionQueue,
    PendingBatch,
    RecordsBatch,
    bytes_of,
    headers_bytes,
    headers_of,
)
from fairlead.producing.sender import Sender
from fairlead.producing.table_pieces import NO_KEY, pieces, slices, table_of, whole
from fairlead.producing.transactions import (
    HandedOver,
    JointCommit,
    OpenTransaction,
    ProducerTransactions,
    aborted,
)
from fairlead.records import Headers
from fairlead.settings import (
    DEFAULT_BOOTSTRAP,
    KIB,
    MIB,
    Duration,
    ProducerSettings,
    acks_of,
    batch_bytes_of,
    codec_of,
    connection_of,
    idempotence_of,
    seconds_of,
    seconds_of_ms,
)
from fairlead.timestamps import timestamp_us_of
from fairlead.tls_files import FilePath
from fairlead.topic_partition import TopicPartition
from fairlead.tracing import ProducerTracing
from fairlead.transaction import Transaction
from fairlead_api.batch.header import Codec
from fairlead_api.identifiers import Acks
from fairlead_api.partitioning import partition_for_key
from fairlead_api.problems import ProblemError, SideEffect

if TYPE_CHECKING:
    import pyarrow as pa

QueueOf: TypeAlias = Callable[[str, int], PartitionQueue]
"""Function that returns the queue of a partition, given the topic and the index."""


class TopicRoute:
    """Queues of a topic's partitions.

    Records without a key fill a batch of one partition, then a batch of the next partition, so that batches stay large
    and partitions stay balanced.
    """

    __slots__ = ("_queue_of", "queues", "sticky", "topic", "topic_id")

    def __init__(
        self,
        topic: str,
        partition_count: int,
        chance: float,
        queue_of: QueueOf = PartitionQueue,
        topic_id: str | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._queue_of = queue_of
        self.queues: list[PartitionQueue] = []
        self.grow(partition_count)
        # The first partition is random, so that producers that start together do not all begin at partition 0.
        self.sticky = self.queues[int(chance * partition_count)]

    def holds(self, partition: int) -> bool:
        """Return whether the topic has a partition with this index."""
        return 0 <= partition < len(self.queues)

    def grow(self, partition_count: int) -> None:
        """Add the queues of new partitions; a topic never loses partitions."""
        for index in range(len(self.queues), partition_count):
            queue = self._queue_of(self.topic, index)
            queue.topic_id = self.topic_id
            self.queues.append(queue)

    def advance(self, picture: Picture) -> PartitionQueue:
        """Move `sticky` to the next partition with a leader, or to the next partition if no partition has a leader."""
        count = len(self.queues)
        following = [self.queues[(self.sticky.partition + step) % count] for step in range(1, count + 1)]
        led = (queue for queue in following if picture.leader(self.topic, queue.partition) is not None)
        self.sticky = next(led, following[0])
        return self.sticky


YIELD_RECORDS: Final = 1024
"""Number of records of a batch after which `send` yields to the event loop even if no wait is necessary, so that a
tight loop of the program does not starve the sender. `send` also yields when a batch is full or many batches wait to be
sent."""

THREAD_TABLE_BYTES: Final = 1 * MIB
"""Minimum size of a table that is cast, hashed and cut in a thread, because this work would block the event loop for
milliseconds."""

FAILURES_MAX: Final = 1000
"""Maximum number of failed batches that are kept for the next `flush`; further failures are only counted."""


class Producer:
    """Producer of records, opened with `async with`, or with `start` and `close`.

    - bootstrap: URL of a broker, or several.
    - acks: `"all"` waits until every in-sync replica has the record, `1` waits only for the leader, and `0` waits for
      no acknowledgement.
    - linger_ms: milliseconds that a batch waits for more records.
    - batch_bytes, columnar_batch_bytes: payload at which a batch of `send` or of `send_batch` is sent at once; the
      limit is lower if the topic accepts only smaller batches.
    - compression: `"none"`, `"lz4"` or `"zstd"`.
    - buffer_bytes: unacknowledged payload beyond which `send` waits.
    - request_bytes_max: maximum bytes of one request.
    - requests_in_flight_max: maximum number of requests in flight to one broker.
    - delivery_timeout: time from `send` to the acknowledgement, retries included.
    - retries_max: maximum number of retries; without a maximum, only the delivery timeout stops the retries.
    - idempotence: each record is stored once and in order, however often its batch is sent; idempotence requires acks
      `"all"`, for which it is the default. Without idempotence a retry may store a batch twice.
    - name: identity that outlives the producer: the next producer with the same name fences this producer.
    - transactional: `True` or a name for a producer whose records are sent in transactions, see `transaction`. With a
      name, a new producer aborts the open transaction of the previous producer with this name, and fences that
      producer.
    - transaction_timeout: time after which the cluster aborts an open transaction.
    - follow_moves: whether the producer sends records of a topic that was handed over to another cluster to that
      cluster, with the same token and TLS files; a producer with transactions continues there when all of its topics
      have moved. The default is the environment variable `FAIRLEAD_FOLLOW_MOVES`.
    - request_timeout, connect_timeout, retry_timeout: timeouts of one attempt, of a new connection, and of a call with
      its retries.
    - token, token_file, token_provider: API token or signed token of the caller as text, as a file, or as a function
      that returns the text, synchronous (it runs in a thread) or asynchronous; at most one of the three. Every 30
      seconds, and after a refusal, the file is read again and the function is called again. The default is the
      environment variable `FAIRLEAD_TOKEN` or `FAIRLEAD_TOKEN_FILE`, else the file `/var/run/secrets/fairlead/token` if
      it exists.
    - allow_insecure_token: whether the token is sent to other machines without TLS; the default is the environment
      variable `FAIRLEAD_ALLOW_INSECURE_TOKEN`.
    - ca_file: PEM file with the authorities that sign the brokers' certificates, in addition to the system's
      authorities.
    - client_cert_file, client_key_file: PEM files with the client's certificate and key, for brokers that require a
      certificate. Changed files take effect within 30 seconds.
    - one_address: whether every call goes to a bootstrap address, whose broker forwards calls to the leaders, for
      clients that cannot reach the other brokers; the default is the environment variable `FAIRLEAD_ONE_ADDRESS`.

    Raises `SettingError` for a value that is not allowed.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        acks: Acks | str | int = "all",
        linger_ms: float = 5,
        batch_bytes: int = 256 * KIB,
        columnar_batch_bytes: int = MIB,
        compression: Codec | str = "none",
        buffer_bytes: int = 64 * MIB,
        request_bytes_max: int = 8 * MIB,
        requests_in_flight_max: int = 5,
        delivery_timeout: Duration = "2m",
        retries_max: int | None = None,
        idempotence: bool | None = None,
        name: str | None = None,
        transactional: str | bool = False,
        transaction_timeout: Duration = "1m",
        follow_moves: bool | None = None,
        request_timeout: Duration = "30s",
        connect_timeout: Duration = "5s",
        retry_timeout: Duration = "30s",
        token: str | None = None,
        token_file: FilePath | None = None,
        token_provider: TokenProvider | None = None,
        allow_insecure_token: bool | None = None,
        ca_file: FilePath | None = None,
        client_cert_file: FilePath | None = None,
        client_key_file: FilePath | None = None,
        one_address: bool | None = None,
    ) -> None:
        self._connection = connection_of(
            bootstrap, connect=connect_timeout, request=request_timeout, retry=retry_timeout, token=token,
            token_file=token_file, token_provider=token_provider, allow_insecure_token=allow_insecure_token,
            ca_file=ca_file, client_cert_file=client_cert_file, client_key_file=client_key_file,
            one_address=one_address, follow=follow_moves,
        )  # fmt: skip
        self._settings = ProducerSettings(
            acks=acks_of(acks), linger_seconds=seconds_of_ms(linger_ms, "linger_ms"),
            batch_bytes=batch_bytes_of(batch_bytes, "batch_bytes", buffer_bytes),
            columnar_batch_bytes=batch_bytes_of(columnar_batch_bytes, "columnar_batch_bytes", buffer_bytes),
            codec=codec_of(compression), buffer_bytes=buffer_bytes, request_bytes_max=request_bytes_max,
            requests_in_flight_max=requests_in_flight_max, retries_max=retries_max, name=name,
            delivery_timeout_seconds=seconds_of(delivery_timeout, "delivery_timeout"),
            idempotence=idempotence_of(idempotence, acks_of(acks)), transactional=transactional,
            transaction_timeout_seconds=seconds_of(transaction_timeout, "transaction_timeout"),
        )  # fmt: skip
        self._accumulator = Accumulator(self._settings)
        self._holding = Holding()
        self._tracing = ProducerTracing.at_hand()
        self._routes: dict[str, TopicRoute] = {}
        self._room_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._failures: deque[PendingBatch] = deque()
        self._failures_dropped = 0
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._sizes: dict[str, BatchSizes] = {}
        self._halted: FairleadError | None = None
        self._transactions: ProducerTransactions | None = None
        self._transaction: OpenTransaction | None = None
        self._open = False

    async def start(self) -> Self:
        """Open the connections and start sending, as entering the `async with` block does.

        Raises `SettingError` if the producer is already open.
        """
        if self._open:
            raise second_start()
        self._transport = await Transport(self._connection, "producer").__aenter__()
        transactional = self._settings.transactional
        self._metadata = MetadataCache(self._transport, by_topic=transactional is False)
        if transactional is not False:
            self._transactions = ProducerTransactions(
                self._transport,
                None if transactional is True else transactional,
                self._settings.transaction_timeout_seconds,
            )
            try:
                # The begin request fences the previous producer with the same name.
                await self._transactions.begin()
            except BaseException:
                await self._transport.close()
                raise
        self._sender = Sender(
            self._accumulator,
            self._metadata,
            self._transport,
            self._settings,
            self._holding,
            on_settled=self._settled,
            on_picture=self._picture_taken,
            on_halted=self._sender_halted,
        )
        self._task = asyncio.get_running_loop().create_task(self._sender.run(), name="fairlead producer")
        self._task.add_done_callback(self._sender_ended)
        self._open = True
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except ExceptionGroup as failures:
            if error is None:
                raise
            # The exception of the `async with` block is raised; undelivered records are added to the exception as a
            # note.
            error.add_note("\n".join([failures.message, *map(str, failures.exceptions)]))

    async def close(self) -> None:
        """Flush, then close the connections; raise the same errors as `flush`. Further sends raise `ClosedError`."""
        if not self._open:
            return
        self._open = False
        self._routes.clear()
        try:
            if self._transactions is not None:
                with suppress(FairleadError):
                    await self._resolve_transaction()
            await self._settle_all()
            self._sender.stop()
            await self._task
        finally:
            await self._shut()
        self._raise_failures()

    async def abort(self) -> None:
        """Close without a flush and send no further record, because another producer will send the records.

        Records without an acknowledgement fail with `ClosedError` at once; records in flight may still be stored.
        `abort` does not wait for brokers. `abort` does nothing after `close` has begun, and `close` does nothing after
        `abort`.
        """
        if self._open:
            self._open = False
            self._routes.clear()
            await self._shut()

    async def _shut(self) -> None:
        """Stop the sender, which gives every batch an outcome, and close the connections."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._transport.close()

    @property
    def metrics(self) -> ProducerMetrics:
        """Number and length of the waits that brokers have requested because of quotas."""
        return self._holding.metrics

    def transaction(self) -> Transaction:
        """Return the next transaction for `async with`; leaving the block commits it, an exception aborts it.

        The commit waits for the acknowledgement of all records. If a record fails, the transaction is aborted, and
        leaving the block raises `TransactionAbortedError`. A commit without a definite answer raises
        `CommitUnknownError`; the next transaction begins only when the outcome is known. Raises `SettingError` for a
        producer without transactions.
        """
        self._check_transactional()
        return Transaction(self)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Append one record to its batch and return its delivery; the call waits only for buffer space.

        Without `partition`, the murmur2 hash of the key selects the partition, and records without a key fill a batch
        of one partition after another. `timestamp` is an aware datetime or milliseconds since 1970; the default is the
        current time. Raises `TopicNotFoundError`, `PartitionNotFoundError`, `RecordError`, `BatchTooLargeError`.
        """
        route = self._routes.get(topic)
        if route is None:
            route = await self._route(topic)
        if value.__class__ is not bytes or (key is not None and key.__class__ is not bytes):
            value, key = bytes_of(value, topic, "value"), bytes_of(key, topic, "key")
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        if headers:
            headers = headers_of(headers, topic)
        if self._tracing is not None:
            headers = self._tracing.created(topic, headers)
        if headers:
            size += headers_bytes(headers)
        time_ns = now_ns() if timestamp is None else timestamp_us_of(timestamp, "timestamp") * 1000
        sticky = key is None and partition is None
        queue = route.sticky if sticky else self._queue_for(route, key, partition)
        accumulator = self._accumulator
        if accumulator.room < size or self._room_waiters:
            await self._reserve(size, self._transaction)
        else:
            accumulator.room -= size
        # There is no `await` from here until the record is in its batch, so that appends keep their order.
        batch = queue.open
        if batch is None or batch.nbytes + size > queue.sizes.batch_bytes:
            batch = self._open_batch(route, queue, size, sticky=sticky)
        values = batch.values
        index = len(values)
        values.append(value)
        batch.times_ns.append(time_ns)
        batch.nbytes += size
        if key is not None or headers:
            batch.describe(index, key, headers)
        if index % YIELD_RECORDS == 0 and (index or accumulator.undrained >= UNDRAINED_MAX):
            await asyncio.sleep(0)  # noqa: TID251 - yields to the sender, without a delay
        return Delivery(batch, index)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement, which takes one round trip per call."""
        return await (await self.send(topic, value, key, headers, timestamp, partition))

    async def send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> list[BatchDelivery]:
        """Send a table with the column value and the optional columns key, timestamp and headers.

        Without `partition`, rows with a key go to the partition of their key, and the other rows go to the partitions
        in turn, batch by batch. Returns one delivery per batch, in the order of sending. Waits for buffer space batch
        by batch; a cancelled call does not withdraw the appended batches. Raises `InvalidRecordError` naming the
        column, `RecordError`.
        """
        route = self._routes.get(topic) or await self._route(topic)
        transaction = self._transaction
        if partition is not None:
            self._queue_for(route, None, partition)
        deliveries: list[BatchDelivery] = []
        for part in slices(table_of(data, topic)):
            if part.nbytes < THREAD_TABLE_BYTES:
                cut = self._pieces(topic, part, partition, len(route.queues))
            else:
                cut = await asyncio.to_thread(self._pieces, topic, part, partition, len(route.queues))
            for place, columns in cut:
                await self._reserve(columns.nbytes, transaction)
                queue = route.advance(self._metadata.picture) if place == NO_KEY else route.queues[place]
                batch = self._accumulator.append_columns(queue, columns, clock.monotonic())
                deliveries.append(BatchDelivery(batch))
                self._sender.wake()
            await asyncio.sleep(0)  # noqa: TID251 - yields to the sender, without a delay
        return deliveries

    async def _begin_transaction(self) -> OpenTransaction:
        """Begin a transaction; every record sent from now on belongs to this transaction."""
        self._check_started()
        assert self._transactions is not None, "only a producer with transactions has a Transaction"
        if self._halted is not None:
            raise self._halted.with_traceback(None)
        await self._resolve_transaction()
        await self._follow_home(self._transactions)
        transaction = await self._transactions.begin()
        if self._transaction is not None:
            raise RuntimeError("the producer has an open transaction")
        self._accumulator.identity = transaction.identity
        for queue in self._queues.values():
            queue.sequences.begin(transaction.identity)
        self._transaction = transaction
        return transaction

    async def _follow_home(self, transactions: ProducerTransactions) -> None:
        """Continue in another cluster after all topics of this producer have moved there.

        During a hand-over, the call waits until a cluster accepts records, at most `delivery_timeout`.
        """
        if not self._connection.follow_moves:
            return
        deadline = clock.monotonic() + self._settings.delivery_timeout_seconds
        attempts = 0
        while self._metadata.is_moving and clock.monotonic() < deadline:
            await self._metadata.refresh()
            if self._metadata.is_moving:
                attempts += 1
                await asyncio.sleep(self._connection.backoff.seconds(attempts, clock.chance()))  # noqa: TID251 - a retry
        home = self._metadata.home
        if home is not None:
            self._metadata.move_home(home)
            self._routes.clear()
            transactions.moved()

    async def _resolve_transaction(self) -> None:
        """Determine the outcome of a transaction whose commit or abort was cancelled or got no definite answer.

        Raises `SettingError` for a producer without transactions.
        """
        self._check_transactional()
        if self._transaction is not None and self._transaction.is_ending:
            await self._abort_transaction()

    def _join_offsets(self, joint_commit: JointCommit) -> None:
        """Commit the open transaction with a function that also commits offsets of a group."""
        assert self._transaction is not None, "a transaction is open"
        self._transaction.joint_commit = joint_commit

    async def _commit_transaction(self) -> None:
        """Commit the open transaction once all of its records are acknowledged, otherwise abort it."""
        transaction = self._end_sends()
        assert self._transactions is not None, "a transaction is open"
        with self._sender.last_request.expected(transaction):
            await self._settle_all()
        try:
            await self._transactions.commit(transaction)
        except CommitUnknownError:
            # `_resolve_transaction` determines the outcome.
            raise
        except ProducerFencedError as error:
            self._sender_halted(error)
            self._transaction_over()
            raise
        except FairleadError as error:
            if transaction.is_committed is None:
                await self._abort_after(error)
            else:
                self._transaction_over()
            raise
        self._transaction_over()

    async def _abort_after(self, error: Exception) -> None:
        """Abort the open transaction because of an error. Raises `ProducerFencedError`, which outweighs the error."""
        try:
            await self._abort_transaction()
        except FencedError:
            raise
        except FairleadError as failed:
            error.add_note(f"the abort failed: {failed}")

    async def _hand_over_transaction(self, *, is_followed: bool) -> HandedOver:
        """Wait until all records of the open transaction are acknowledged, and leave it open."""
        transaction = self._end_sends()
        assert self._transactions is not None, "a transaction is open"
        await self._settle_all()
        handed_over = transaction.handed_over()
        self._transactions.handed_over(transaction, is_followed=is_followed)
        self._transaction_over()
        return handed_over

    async def _abort_transaction(self) -> None:
        """Abort the open transaction; waiting records are no longer sent.

        After an error, `_resolve_transaction` repeats the abort, unless the producer is fenced.
        """
        transaction = self._end_sends()
        assert self._transactions is not None, "a transaction is open"
        self._sender.abandon(aborted(transaction, ()))
        await self._settle_all()
        try:
            await self._transactions.abort(transaction)
        except FencedError as error:
            self._sender_halted(error)
            self._transaction_over()
            raise
        self._transaction_over()

    def _end_sends(self) -> OpenTransaction:
        """Return the open transaction, which takes no further records, not even of calls that wait for buffer space."""
        transaction = self._transaction
        assert transaction is not None, "a transaction is open"
        if not transaction.is_ending:
            transaction.is_ending = True
            self._routes.clear()
            while self._room_waiters:
                _, waiter = self._room_waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(self._no_transaction())
        return transaction

    def _transaction_over(self) -> None:
        # The commit or abort has already reported the failures of the transaction's batches.
        self._failures.clear()
        self._failures_dropped = 0
        self._sender.abandon(None)
        self._transaction = None

    async def flush(self) -> None:
        """Send all batches now and wait for their outcomes.

        Raises an `ExceptionGroup` with the failures since the last flush that no awaited delivery has raised, and
        `ClosedError` if the producer is not open.
        """
        self._check_started()
        await self._settle_all()
        self._raise_failures()

    async def refresh_metadata(self) -> None:
        """Refresh the metadata now; new partitions of topics are used from then on.

        The producer also refreshes its metadata when a leader moves, and every five minutes.
        """
        self._check_started()
        await self._metadata.refresh()
        self._picture_taken()

    async def _settle_all(self) -> None:
        self._send_lingering()
        for batch in self._accumulator.unfinished:
            await outcome(batch)

    def _raise_failures(self) -> None:
        failed = [batch for batch in self._failures if not batch.failure_is_seen]
        dropped = self._failures_dropped
        self._failures.clear()
        self._failures_dropped = 0
        if failed:
            records = sum(batch.record_count for batch in failed)
            more = f", and {dropped} more batches before them" if dropped else ""
            message = f"{records} records in {len(failed)} batches were not acknowledged{more}"
            raise ExceptionGroup(message, _distinct(failed))

    def _queue_for(self, route: TopicRoute, key: bytes | None, partition: int | None) -> PartitionQueue:
        """Return the queue of a record with a key or an explicit partition."""
        if partition is None:
            assert key is not None, "records without key and partition go to the sticky partition"
            return route.queues[partition_for_key(key, len(route.queues))]
        if not route.holds(partition):
            raise partition_not_found(TopicPartition(route.topic, partition), len(route.queues))
        return route.queues[partition]

    def _open_batch(
        self, route: TopicRoute, queue: PartitionQueue, size: int, *, sticky: bool
    ) -> RecordsBatch:
        """Return a batch with room for a record; each new batch of the sticky partition selects another partition."""
        linger_seconds = self._settings.linger_seconds
        if queue.open is not None or not linger_seconds:
            self._sender.wake()
        if sticky:
            queue.close_open()
            queue = route.advance(self._metadata.picture)
            if queue.open is not None:
                if queue.open.nbytes + size <= queue.sizes.batch_bytes:
                    return queue.open
                self._sender.wake()
        now = clock.monotonic()
        # The sender is not woken before the linger time ends: records to a thousand partitions would wake it a thousand
        # times, and each time it would check all partitions.
        self._sender.wake_before(now + linger_seconds)
        return self._accumulator.open_batch(queue, now)

    def _pieces(
        self, topic: str, data: pa.Table | pa.RecordBatch, partition: int | None, partition_count: int
    ) -> list[tuple[int, pa.RecordBatch]]:
        limit = min(self._settings.columnar_batch_bytes, self._sizes[topic].fitting_bytes)
        now = clock.now_us()
        try:
            if partition is not None:
                return whole(data, partition, limit, now)
            return pieces(data, partition_count, limit, now)
        except ProblemError as problem:
            raise error_of(problem, subject=f"table for {topic}") from problem

    async def _route(self, topic: str) -> TopicRoute:
        self._check_open()
        transaction = self._transaction
        try:
            found = await self._metadata.topic(topic)
        except TopicNotFoundError:
            if not await creates_topics(self._transport, self._metadata):
                raise
            await create_topic(self._transport, topic)
            found = await self._metadata.topic(topic)
        self._check_still_open(transaction)
        route = self._routes.get(topic)
        if route is None:
            chance, count = clock.chance(), len(found.partitions)
            route = self._routes[topic] = TopicRoute(topic, count, chance, self._queue_of, found.topic_id)
        return route

    def _check_started(self) -> None:
        if not self._open:
            raise ClosedError("producer")

    def _check_open(self) -> None:
        self._check_started()
        if self._transactions is not None and (self._transaction is None or self._transaction.is_ending):
            raise self._no_transaction()
        if self._halted is not None:
            raise self._halted.with_traceback(None)

    def _check_still_open(self, transaction: OpenTransaction | None) -> None:
        """Check after a wait that records can be sent in the transaction in which the call began."""
        self._check_open()
        if self._transaction is not transaction:
            raise self._no_transaction()

    def _check_transactional(self) -> None:
        if self._settings.transactional is False:
            raise SettingError("transactional", False, "True or a name, for transactions")

    def _no_transaction(self) -> SettingError:
        return SettingError(
            "transactional", self._settings.transactional, "records only within a transaction"
        )

    def _queue_of(self, topic: str, partition: int) -> PartitionQueue:
        """Return the queue of a partition. The queue and its sequences are kept even while the topic is missing."""
        place = TopicPartition(topic, partition)
        queue = self._queues.get(place)
        if queue is None:
            sizes = self._sizes.setdefault(topic, BatchSizes(self._settings.batch_bytes))
            queue = self._queues[place] = PartitionQueue(topic, partition, sizes)
        return queue

    async def _reserve(self, size: int, transaction: OpenTransaction | None) -> None:
        """Reserve buffer space for a record, after earlier waiters; `transaction` is the record's transaction, if any.

        Raises `ClosedError` if the producer is closed during the wait, and `SettingError` if the transaction ends.
        """
        self._check_still_open(transaction)
        accumulator = self._accumulator
        if accumulator.room >= size and not self._room_waiters:
            accumulator.room -= size
            return
        if size > self._settings.buffer_bytes:
            limit = self._settings.buffer_bytes
            problem = ProblemError(
                "batch_too_large",
                f"{size} bytes do not fit in buffer_bytes={limit}",
                data={"limit_bytes": limit},
            )
            raise BatchTooLargeError(problem, subject="send")
        self._send_lingering()
        waiter = asyncio.get_running_loop().create_future()
        self._room_waiters.append((size, waiter))
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                accumulator.room += size
            else:
                self._room_waiters = deque(entry for entry in self._room_waiters if entry[1] is not waiter)
            self._give_room()
            raise
        try:
            self._check_still_open(transaction)
        except FairleadError:
            accumulator.room += size
            self._give_room()
            raise
        if self._room_waiters:
            # The batch that contains the record would occupy the buffer space for which other calls wait.
            asyncio.get_running_loop().call_soon(self._send_lingering)

    def _send_lingering(self) -> None:
        """Send lingering batches now, because they occupy the buffer space that a waiting `send` needs."""
        self._accumulator.close_all()
        self._sender.wake()

    def _give_room(self) -> None:
        waiters = self._room_waiters
        while waiters and (waiters[0][1].done() or waiters[0][0] <= self._accumulator.room):
            size, waiter = waiters.popleft()
            if not waiter.done():
                self._accumulator.room -= size
                waiter.set_result(None)

    def _settled(self, batch: PendingBatch) -> None:
        if self._transaction is not None:
            self._transaction.settled(batch)
        if batch.error is not None:
            if len(self._failures) >= FAILURES_MAX:
                self._failures.popleft()
                self._failures_dropped += 1
            self._failures.append(batch)
        self._give_room()

    def _picture_taken(self) -> None:
        for sizes in self._sizes.values():
            sizes.forget()
        topics = self._metadata.picture.topics
        for name, route in list(self._routes.items()):
            if name in topics and topics[name].topic_id == route.topic_id:
                route.grow(len(topics[name].partitions))
            else:
                # The topic was deleted or recreated, so the next `send` fetches its metadata again. A recreated topic
                # may have fewer partitions.
                del self._routes[name]

    def _sender_halted(self, error: FairleadError) -> None:
        """Refuse further records; the sender fails waiting batches, which also ends waits for buffer space."""
        self._halted = error
        self._routes.clear()

    def _sender_ended(self, task: asyncio.Task[None]) -> None:
        """Fail all records without an outcome when the sender has ended, so that no delivery waits forever."""
        cause = None if task.cancelled() else task.exception()
        if cause is not None:
            broken = ClosedError("producer")
            broken.__cause__ = cause
            self._sender_halted(broken)
        while self._room_waiters:
            _, waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_exception(ClosedError("producer"))
        for batch in self._accumulator.unfinished:
            error = ClosedError("producer")
            error.__cause__ = cause
            if batch.side_effect is SideEffect.MAYBE or batch in batch.queue.in_flight:
                error.add_note("An attempt received no definite answer: the records may have been stored.")
            self._accumulator.give_up(batch, error)
            batch.fail(error)
            self._settled(batch)


def _distinct(failed: list[PendingBatch]) -> list[FairleadError]:
    return list({id(batch.error): batch.error for batch in failed if batch.error is not None}.values())
