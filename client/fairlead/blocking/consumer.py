"""The blocking consumer; see `fairlead.Consumer`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from fairlead.blocking.facade import Facade, blocking, in_loop, same_arguments
from fairlead.consumer import Consumer as AsyncConsumer
from fairlead.group.session import Membership, closed_by_callback
from fairlead.group.settings import RebalanceCallback
from fairlead.reading.cursors import EndOffsets
from fairlead.records import ConsumerBatch, Record
from fairlead.topic_partition import TopicPartition


class Consumer(Facade[AsyncConsumer]):
    """Blocking variant of `fairlead.Consumer`, opened with `with`; its batches are read in `for` loops.

    Heartbeats continue while the program processes a batch. `on_assigned` and `on_revoked` run in a separate thread and
    may call the consumer; only `close` is refused in these callbacks.
    """

    @same_arguments(AsyncConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._callback_threads: set[int] = set()
        for name in ("on_assigned", "on_revoked"):
            if callable(kwargs.get(name)):
                kwargs[name] = self._in_thread(kwargs[name])
        super().__init__(AsyncConsumer(*args, **kwargs))

    def close(self) -> None:
        """Stop reading and close the connections; a running iteration raises `ClosedError`.

        A member of a group commits if its `commit` mode requires it, and leaves the group; the batch that was taken
        last counts as processed. Returns at once if another call is already closing the consumer, even in `on_revoked`.
        When no other call is closing the consumer, a call in `on_assigned` or `on_revoked` raises `SettingError`,
        because closing waits for these callbacks. A callback can raise an exception, which is raised again by the next
        call that takes a batch, or set a flag so that the code that takes batches closes the consumer.
        """
        super().close()

    assign = blocking(AsyncConsumer.assign)
    seek = blocking(AsyncConsumer.seek)
    commit = blocking(AsyncConsumer.commit)
    committed = blocking(AsyncConsumer.committed)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offsets_for_times = blocking(AsyncConsumer.offsets_for_times)
    next_batch = blocking(AsyncConsumer.next_batch)
    pause = in_loop(AsyncConsumer.pause)
    resume = in_loop(AsyncConsumer.resume)
    position = in_loop(AsyncConsumer.position)
    high_watermark = in_loop(AsyncConsumer.high_watermark)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer reads."""
        return self._client.assignment

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The assigned partitions that are paused."""
        return self._client.paused

    @property
    def membership(self) -> Membership:
        """Membership of the consumer in its group."""
        return self._client.membership

    def __iter__(self) -> Iterator[ConsumerBatch]:
        return self.batches()

    def batches(self, until: EndOffsets | None = None) -> Iterator[ConsumerBatch]:
        """Iterate over batches as they arrive, forever, or until every partition in `until` has reached its end offset.

        The error of a partition is raised after the batches that were fetched before the error; the other partitions
        continue in the next iteration.
        """
        batches = self._client.batches(until)

        async def take() -> ConsumerBatch | None:
            """Return the next batch; None after the last batch of the iteration."""
            with suppress(StopAsyncIteration):
                return await anext(batches)
            return None

        while (batch := self._thread.run(take())) is not None:
            yield batch

    def records(self, until: EndOffsets | None = None) -> Iterator[Record]:
        """Iterate over single records; a record counts as processed when the next record is taken.

        If the loop stops inside a batch, the next call returns the rest of the batch; a commit covers the records up to
        the last record taken.
        """
        for batch in self.batches(until):
            for record in batch:
                self._client.in_hand(record)
                yield record
                if not self._client.has_in_hand:
                    break
            else:
                self._client.in_hand(None)

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_current or threading.get_ident() in self._callback_threads:
            if not self._closing.locked():
                raise closed_by_callback()
            return
        super()._close(kind, error, trace)

    def _in_thread(self, callback: RebalanceCallback) -> RebalanceCallback:
        """Wrap a plain callback so that it runs in a thread and does not block the event loop."""
        if inspect.iscoroutinefunction(callback):
            return callback

        def call_here(partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
            here = threading.get_ident()
            self._callback_threads.add(here)
            try:
                return callback(partitions)
            finally:
                # The thread pool may use this thread for other work later.
                self._callback_threads.discard(here)

        async def call(partitions: frozenset[TopicPartition]) -> None:
            result = await asyncio.to_thread(call_here, partitions)
            if inspect.isawaitable(result):
                # The callback is a plain function or a callable object that returned a coroutine.
                await result

        return call
