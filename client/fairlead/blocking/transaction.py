"""A transaction of the blocking producer; see `fairlead.transaction`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fairlead.producing.delivery import RecordMetadata
from fairlead.records import Headers
from fairlead.transaction import Transaction as AsyncTransaction

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.blocking.producer import BatchDelivery, Delivery, Producer


class Transaction:
    """One transaction, opened with `with producer.transaction()`; a producer has one open transaction at a time."""

    def __init__(
        self,
        producer: Producer,
        inner: AsyncTransaction,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
        queued: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`run` runs a coroutine on the producer's loop; `queued` adds queued records to their batches.

        `queued` raises the error of a record that could not be sent.
        """
        self._producer = producer
        self._inner = inner
        self._run = run
        self._queued = queued

    @property
    def id(self) -> str | None:
        """Id of the transaction, such as `17.4`; None before the `with` block begins."""
        return self._inner.id

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._leave(kind, error, trace))

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._inner.__aexit__(kind, error, trace)
            return
        try:
            await self._queued()
        except Exception as failed:
            await self._inner.__aexit__(type(failed), failed, failed.__traceback__)
            raise
        await self._inner.__aexit__(None, None, None)

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
