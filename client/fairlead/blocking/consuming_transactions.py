"""Blocking loop whose transactions contain results together with offsets; see `fairlead.exactly_once`.

with (
    Producer(url, transactional="pricing-1") as producer,
    Consumer(url, group="pricing", topics="orders", commit="manual", isolation="read_committed") as consumer,
):
    for transaction in exactly_once(consumer, producer):
        with transaction:
            for batch in transaction:
                for record in batch:
                    transaction.send("priced", price(record.value), key=record.key)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.blocking.consumer import Consumer
from fairlead.blocking.producer import Producer, ProducerElsewhere, Transaction
from fairlead.consuming_transactions import ConsumingTransaction as AsyncConsumingTransaction
from fairlead.consuming_transactions import Retried, consuming_transactions
from fairlead.records import ConsumerBatch
from fairlead.settings import Duration, seconds_of

if TYPE_CHECKING:
    from fairlead.blocking.loop_thread import LoopThread


class ConsumingTransaction(Transaction):
    """One transaction of `exactly_once`: open it with `with`, and iterate over its batches.

    The iteration ends after the time `every`, and leaving the block commits the results with the offsets of the
    batches. Every batch that the iteration has handed out counts as processed.
    """

    def __init__(self, producer: Producer, inner: AsyncConsumingTransaction, thread: LoopThread) -> None:
        """`thread` runs the consumer and the async transaction `inner`."""
        super().__init__(producer, inner, thread)
        self._batches = aiter(inner)

    def __iter__(self) -> Iterator[ConsumerBatch]:
        """Iterate over batches, from the first batch that arrives until the transaction's time is up."""
        while (batch := self._thread.run(self._take())) is not None:
            yield batch

    async def _take(self) -> ConsumerBatch | None:
        """Return the next batch; None after the last batch of the transaction."""
        with suppress(StopAsyncIteration):
            return await anext(self._batches)
        return None


def exactly_once(
    consumer: Consumer, producer: Producer, *, every: Duration = "100ms", retry: Retried = ()
) -> Iterator[ConsumingTransaction]:
    """Yield transactions that commit results together with the offsets of the records from which they were computed.

    The arguments and rules are those of `fairlead.exactly_once`.
    """
    thread = consumer._thread  # noqa: SLF001 - parts of one exchange
    rounds = consuming_transactions(
        consumer._client,  # noqa: SLF001 - parts of one exchange
        ProducerElsewhere(producer, thread),
        seconds_of(every, "every"),
        retry,
    )

    async def following() -> AsyncConsumingTransaction:
        """Return the next transaction, on the event loop of the consumer."""
        return await anext(rounds)

    while True:
        yield ConsumingTransaction(producer, thread.run(following()), thread)
