"""The request with the last batches of a transaction, which also commits the transaction.

The sender calls this module. If all unfinished batches of a transaction fit in one request to one broker, the broker
stores the batches and then commits, so that a transaction takes one exchange less. Without an answer that the
transaction is committed, the producer sends the commit separately: an earlier release of the broker only stores the
batches. A repeat of the request is answered like the first attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from fairlead.connection.transport import Answer, Call
from fairlead.errors import UnreachableError
from fairlead.producing.transactions import OpenTransaction
from fairlead_api.bodies.decided_transactions import DecidedTransaction


class _CommitAnswer(msgspec.Struct):
    committed: DecidedTransaction | UnsetType = UNSET


_DECODER: Final = msgspec.json.Decoder(_CommitAnswer)


class LastRequest:
    """The transaction whose last batches the sender may send together with its commit."""

    __slots__ = ("_limit", "transaction")

    def __init__(self) -> None:
        self.transaction: OpenTransaction | None = None
        """Transaction that may be committed; None outside of `expected`."""
        self._limit: asyncio.Timeout | None = None
        """Limit of the request in flight."""

    @contextmanager
    def expected(self, transaction: OpenTransaction) -> Iterator[None]:
        """Within the context, a transaction is committed together with its last batches.

        A request that is still in flight at the end of the context, after a cancellation, ends without an answer.
        """
        self.transaction = transaction
        try:
            yield
        finally:
            self.transaction = None
            if self._limit is not None:
                self._limit.reschedule(asyncio.get_running_loop().time())

    def commits(self, places: Collection[tuple[str, int]]) -> OpenTransaction | None:
        """Return the transaction that a request commits which contains all unfinished batches of the producer.

        `places`: topic id and partition of each batch of the request.
        """
        transaction = self.transaction
        if transaction is None or not transaction.is_completed_by(places):
            return None
        transaction.is_commit_sent = True
        return transaction

    async def answered(self, call: Call, leader: str, sending: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the answer to a request that commits. Raises `UnreachableError` at the end of the context."""
        try:
            async with asyncio.timeout(None) as self._limit:
                return await sending
        except TimeoutError as error:
            raise UnreachableError(call.subject, {leader: "the commit was cancelled"}, sent=True) from error
        finally:
            self._limit = None


def note_commit(transaction: OpenTransaction, answer: Answer) -> None:
    """Note that the transaction is committed if the answer says so."""
    committed = _DECODER.decode(answer.body).committed
    transaction.decided = None if committed is UNSET else committed
