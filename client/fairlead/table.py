"""A compacted topic as a table: the newest value of each key in memory, rebuilt from the start of the topic.

    async with Table("http://127.0.0.1:9520", "accounts") as table:
        await table.caught_up()
        print(table.get(b"ann"))
        written = await table.put(b"ann", b"15")
        await table.wait_for(written)

A task reads the topic with a consumer, and applies whole batches to a dictionary. Writes go through a producer to the
topic, and become visible in the table when the task has read them. The module must not depend on groups: every table
reads all partitions, and nothing about a table is stored in the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, ItemsView, Iterable, Iterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, cast

from fairlead.consumer import Consumer
from fairlead.credentials import TokenProvider
from fairlead.errors import ClosedError, FairleadError, second_start
from fairlead.producer import Producer
from fairlead.producing.delivery import RecordMetadata
from fairlead.records import ConsumerBatch
from fairlead.settings import DEFAULT_BOOTSTRAP, Duration, seconds_of
from fairlead.tls_files import FilePath
from fairlead.topic_partition import TopicPartition

LOOK_SECONDS: Final = 0.2
"""Seconds between two checks of the position, which at the end of the topic passes removed records without a batch."""


class Table:
    """Newest value of each key of a topic, opened with `async with`, or with `start` and `close`.

    - bootstrap: URL of a broker, or several.
    - topic: name of the topic, which need not be compacted; a record without a key is ignored.
    - on_change: function that is called with each batch, in order, after the batch was applied; an exception ends the
      reading.
    - keeps_values: whether the table keeps keys and values; without them, only `on_change` gets the records.

    The remaining arguments are those of `Consumer`. The table reads committed records only. Raises `SettingError` for
    a value that is not allowed.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        topic: str = "",
        *,
        on_change: Callable[[ConsumerBatch], None] | None = None,
        keeps_values: bool = True,
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
        bootstrap = bootstrap if isinstance(bootstrap, str) else tuple(bootstrap)
        self.topic = topic
        """Name of the topic."""
        self._consumer = Consumer(
            bootstrap, isolation="read_committed", request_timeout=request_timeout, connect_timeout=connect_timeout,
            retry_timeout=retry_timeout, token=token, token_file=token_file, token_provider=token_provider,
            allow_insecure_token=allow_insecure_token, ca_file=ca_file, client_cert_file=client_cert_file,
            client_key_file=client_key_file, one_address=one_address,
        )  # fmt: skip
        self._producer = Producer(
            bootstrap, linger_ms=0, request_timeout=request_timeout, connect_timeout=connect_timeout,
            retry_timeout=retry_timeout, token=token, token_file=token_file, token_provider=token_provider,
            allow_insecure_token=allow_insecure_token, ca_file=ca_file, client_cert_file=client_cert_file,
            client_key_file=client_key_file, one_address=one_address,
        )  # fmt: skip
        self._on_change = on_change
        self._keeps_values = keeps_values
        self._values: dict[bytes, bytes] = {}
        self._applied: dict[int, int] = {}
        """Offset after the last applied record of each partition."""
        self._changed = asyncio.Condition()
        self._caught_up = asyncio.Event()
        self._stack: AsyncExitStack | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Open the connections and begin to read the topic, as entering the `async with` block does.

        Raises `TopicNotFoundError`, and `SettingError` while the table is open.
        """
        if self._stack is not None:
            raise second_start()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._consumer)
            await stack.enter_async_context(self._producer)
            await self._consumer.assign(topic=self.topic)
            self._values.clear()
            self._applied.clear()
            self._caught_up.clear()
            self._stack = stack.pop_all()
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="fairlead table")
        return self

    async def close(self) -> None:
        """Send waiting records, stop reading and close the connections. The values can still be read."""
        stack, self._stack = self._stack, None
        if stack is None:
            return
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        await stack.aclose()
        async with self._changed:
            self._changed.notify_all()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- reading

    @property
    def is_caught_up(self) -> bool:
        """Whether the table has all records that the topic had when the table was opened."""
        return self._caught_up.is_set()

    async def caught_up(self, timeout: Duration | None = None) -> Self:  # noqa: ASYNC109
        """Wait until the table has all records that the topic had when the table was opened, and return the table.

        Raises TimeoutError, the error that ended the reading, and `ClosedError`.
        """
        await self._until(lambda: self.is_caught_up, timeout)
        return self

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the value of a key, or the default for a key without a value."""
        return self._values.get(key, default)

    def items(self) -> ItemsView[bytes, bytes]:
        """Return a view of all keys and values, which changes with the table."""
        return self._values.items()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values)

    async def wait_for(
        self,
        written: RecordMetadata | tuple[int, int],
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> None:
        """Wait until the table has a record, or a later record of the same partition.

        `written` is what `put` or `delete` returned, or a partition and an offset: `wait_for((0, 41))`.
        Raises TimeoutError, the error that ended the reading, and `ClosedError`.
        """
        partition, offset = (
            (written.partition, written.offset) if isinstance(written, RecordMetadata) else written
        )
        place = TopicPartition(self.topic, partition)
        await self._until(lambda: max(self._applied.get(partition, 0), self._passed(place)) > offset, timeout)

    # -- writing

    async def put(self, key: bytes, value: bytes) -> RecordMetadata:
        """Write the value of a key to the topic, and return its partition and offset once it is acknowledged."""
        return await self._producer.send_and_wait(self.topic, value, key)

    async def delete(self, key: bytes) -> RecordMetadata:
        """Delete a key: write a tombstone to the topic, and return its partition and offset once acknowledged."""
        return await self._producer.send_and_wait(self.topic, None, key)

    # -- inside

    async def _read(self) -> None:
        ends = await self._consumer.end_offsets()
        async for batch in self._consumer.batches(ends):
            await self._apply(batch)
        self._caught_up.set()
        async with self._changed:
            self._changed.notify_all()
        async for batch in self._consumer.batches():
            await self._apply(batch)

    async def _apply(self, batch: ConsumerBatch) -> None:
        if self._keeps_values:
            self._store(batch)
        if self._on_change is not None:
            self._on_change(batch)
        self._applied[batch.partition] = batch.next_offset
        async with self._changed:
            self._changed.notify_all()

    def _store(self, batch: ConsumerBatch) -> None:
        """Store the keys and values of a batch without its deleted keys and the null key, and remove deleted keys.

        Threads read the values at any time, so no null value may be stored even for a moment.
        """
        # Merging a small dictionary into the large one is faster than storing one pair after another:
        # the keys are hashed while they are in the CPU cache, and the large one is filled in a short loop.
        newest = dict(zip(batch.keys, batch.values, strict=True))
        columns = batch.to_arrow()
        if columns.column("key").null_count:
            del newest[None]
        deleted: list[bytes | None] = []
        if columns.column("value").null_count:
            deleted = [key for key, value in newest.items() if value is None]
            for key in deleted:
                del newest[key]
        self._values.update(cast("dict[bytes, bytes]", newest))
        for key in deleted:
            self._values.pop(cast("bytes", key), None)

    def _passed(self, place: TopicPartition) -> int:
        """Return the consumer's position, which also passes removed records, once the table has caught up; else 0."""
        return (
            self._consumer.position(place) if self.is_caught_up and place in self._consumer.assignment else 0
        )

    async def _until(self, reached: Callable[[], bool], timeout: Duration | None) -> None:  # noqa: ASYNC109
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        async with asyncio.timeout(seconds), self._changed:
            while True:
                self._check()
                if reached():
                    return
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _check(self) -> None:
        """Raise the error that ended the reading."""
        if self._stack is None:
            raise ClosedError("table", "between start and close")
        if self._reading is not None and self._reading.done():
            error = self._reading.exception()
            raise FairleadError("the table stopped reading") if error is None else error
