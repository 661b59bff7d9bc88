"""The transactions of one producer: begin, the partitions with its records, commit and abort.

The producer calls this module, which contains the client's calls about transactions and must not depend on how batches
are built and sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from fairlead import clock
from fairlead.connection.transport import Transport, decoded, json_call
from fairlead.errors import (
    ClusterError,
    CommitUnknownError,
    FairleadError,
    ProducerFencedError,
    RefreshError,
    RetryError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionNotFoundError,
    UnreachableError,
    error_of,
)
from fairlead.producing.pending_batch import PendingBatch, ProducerIdentity
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.transactions import (
    BeginRequest,
    CommitTransactionRequest,
    TopicPartitions,
    TransactionAnswer,
    TransactionOffsets,
)
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import EPOCH_MAX, TransactionId, parse_transaction_id

BEGIN_PATH: Final = "/v1/transactions"
_UNANSWERED: Final = (UnreachableError, RetryError, RefreshError)
"""Errors of a call whose effect is unknown."""
SendCommit: TypeAlias = Callable[[TransactionOffsets | None], Coroutine[Any, Any, None]]
"""Function that sends the commit of a transaction, with the given offsets of a group, if any."""
JointCommit: TypeAlias = Callable[[SendCommit], Coroutine[Any, Any, None]]
"""Function that commits a transaction with offsets of a group; its argument is a function that sends the commit."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Open transaction whose records are all acknowledged, and which another program commits or aborts."""

    id: str
    """Id of the transaction, such as `17.4`."""
    partitions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Partitions with records of the transaction, by topic id."""


class OpenTransaction:
    """Identity of the open transaction, and the outcomes of its batches."""

    __slots__ = (
        "decided", "failure", "fencing_epoch", "identity", "is_commit_sent", "is_committed", "is_ending",
        "joint_commit", "partitions",
    )  # fmt: skip

    def __init__(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.partitions: dict[str, set[int]] = {}
        """Partitions with acknowledged batches, by topic id."""
        self.failure: FairleadError | None = None
        """Failure of the first failed batch."""
        self.fencing_epoch = -1
        """Highest epoch of the producer in a partition that refused a batch as fenced; -1 if no partition did."""
        self.joint_commit: JointCommit | None = None
        """Function that commits the transaction together with offsets of a group."""
        self.is_ending = False
        """Whether the commit or abort has begun; the transaction takes no further records."""
        self.is_commit_sent = False
        """Whether a request with the last batches also contained the commit; a broker may have committed it."""
        self.decided: DecidedTransaction | None = None
        """Answer of a broker that committed the transaction together with its last batches."""
        self.is_committed: bool | None = None
        """Outcome of the transaction; None while the outcome is unknown."""

    @property
    def id(self) -> str:
        """Id of the transaction, such as `17.4`."""
        return f"{self.identity.producer_id}.{self.identity.epoch}"

    def is_completed_by(self, places: Collection[tuple[str, int]]) -> bool:
        """Return whether a request with batches for these partitions may also commit the transaction.

        The commit of such a request names only the partitions of the request, and no offsets of a group.
        """
        return (
            self.failure is None
            and self.joint_commit is None
            and all(
                (topic_id, partition) in places
                for topic_id, partitions in self.partitions.items()
                for partition in partitions
            )
        )

    def handed_over(self) -> HandedOver:
        """Return the transaction for the program that commits it. Raises `TransactionAbortedError`."""
        if self.failure is not None:
            raise aborted(self, [self.failure])
        return HandedOver(
            self.id,
            tuple((topic_id, tuple(sorted(found))) for topic_id, found in self.partitions.items()),
        )

    def settled(self, batch: PendingBatch) -> None:
        """Record the outcome of a batch."""
        if batch.error is not None:
            self.failure = self.failure or batch.error
            if isinstance(batch.error, ProducerFencedError):
                epoch = batch.error.data.get("current_epoch")
                self.fencing_epoch = max(self.fencing_epoch, epoch if isinstance(epoch, int) else -1)
        else:
            topic_id = batch.queue.topic_id
            assert topic_id is not None, "an acknowledged batch has a topic id"
            self.partitions.setdefault(topic_id, set()).add(batch.partition)


class ProducerTransactions:
    """Begins, commits and aborts the transactions of a producer, one after the other."""

    __slots__ = ("_above", "_name", "_next", "_timeout_ms", "_transport")

    def __init__(self, transport: Transport, name: str | None, timeout_seconds: float) -> None:
        self._transport = transport
        self._name = name
        self._timeout_ms = round(timeout_seconds * 1000)
        self._next: ProducerIdentity | None = None
        """Identity of the next transaction if the last answer named it; None if a begin request is needed."""
        self._above: int | None = None
        """Epoch that the next begin request must exceed, after a restore of the coordination store from a backup."""

    def moved(self) -> None:
        """Send a begin request for the next transaction, because another cluster decides it."""
        self._next = self._above = None

    async def begin(self) -> OpenTransaction:
        """Return the next transaction; send a begin request unless the last answer named the next identity."""
        if self._next is None:
            subject = "transaction" if self._name is None else f"transaction of {self._name}"
            request = BeginRequest(name=self._name, timeout_ms=self._timeout_ms, above=self._above)
            answer = await self._transport.call(json_call("POST", BEGIN_PATH, subject, body=request))
            found = decoded(answer, TransactionAnswer, subject)
            self._above = None
            self._next = ProducerIdentity(found.producer_id, found.producer_epoch, is_transactional=True)
        return OpenTransaction(self._next)

    async def commit(self, transaction: OpenTransaction) -> None:
        """Commit a transaction whose batches all have an outcome, unless a broker has done so with the last batches.

        Raises `TransactionAbortedError`, `ProducerFencedError`, `CommitUnknownError`, and the errors of a refused
        commit, after which the transaction can be aborted. After a cancellation or `CommitUnknownError`, `abort`
        determines the outcome.
        """
        if transaction.decided is not None:
            self._next = _following(transaction.decided)
            transaction.is_committed = True
        elif transaction.failure is not None:
            if not transaction.is_commit_sent:
                raise aborted(transaction, [transaction.failure])
            await self._settle_unknown(transaction, clock.monotonic(), transaction.failure)
        elif transaction.joint_commit is not None:
            await transaction.joint_commit(lambda offsets: self._commit(transaction, offsets))
        else:
            await self._commit(transaction, None)

    async def _commit(self, transaction: OpenTransaction, offsets: TransactionOffsets | None) -> None:
        if not transaction.partitions and offsets is None:
            # A transaction without records and offsets is not sent.
            self._next = transaction.identity
            transaction.is_committed = True
            return
        request = CommitTransactionRequest(
            partitions=tuple(
                TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
                for topic_id, partitions in transaction.partitions.items()
            ),
            offsets=offsets,
        )
        began = clock.monotonic()
        try:
            await self._end(transaction, "commit", request)
            transaction.is_committed = True
        except (TransactionAbortedError, TransactionNotFoundError):
            transaction.is_committed = False
            raise
        except _UNANSWERED as error:
            await self._settle_unknown(transaction, began, error)

    async def _settle_unknown(self, transaction: OpenTransaction, began: float, cause: FairleadError) -> None:
        """Request an abort to learn the outcome of an unanswered commit; return if the commit was written.

        Raises `TransactionAbortedError` for an abort, and `CommitUnknownError` if no broker answers.
        """
        try:
            await self.abort(transaction)
        except _UNANSWERED:
            raise CommitUnknownError(transaction.id, clock.monotonic() - began) from cause
        if not transaction.is_committed:
            raise aborted(transaction, [cause])

    def handed_over(self, transaction: OpenTransaction, *, is_followed: bool) -> None:
        """Forget a transaction that another program decides; `is_followed`: decided before the next one begins."""
        identity = transaction.identity
        self._next = None
        if is_followed and identity.epoch < EPOCH_MAX:
            self._next = replace(identity, epoch=identity.epoch + 1)

    async def abort(self, transaction: OpenTransaction) -> None:
        """Abort a transaction and set its outcome, unless an earlier commit without an answer was written.

        Raises `ProducerFencedError`, and the last error if no definite answer arrives. Without a definite answer, the
        cluster aborts the transaction after its timeout, unless the transaction is committed.
        """
        try:
            await self._end(transaction, "abort", None)
            transaction.is_committed = False
        except TransactionCommittedError:
            transaction.is_committed = True
        except TransactionNotFoundError:
            # The cluster has forgotten the producer, and a transaction of a forgotten producer is aborted.
            transaction.is_committed = False
        self._pass_fencing_epoch(transaction)

    def _pass_fencing_epoch(self, transaction: OpenTransaction) -> None:
        """Begin above the epoch for which a partition refused a batch, if no other producer uses this epoch.

        The answer to the abort shows that no other producer has begun a later transaction. A partition that knows a
        later epoch has it from before a restore of the coordination store. Without `above`, the partition would refuse
        each transaction of the name until its epoch has passed this epoch.
        """
        following = transaction.identity.epoch if self._next is None else self._next.epoch
        if transaction.fencing_epoch >= following:
            self._next, self._above = None, transaction.fencing_epoch

    async def _end(
        self, transaction: OpenTransaction, how: str, request: CommitTransactionRequest | None
    ) -> None:
        subject = f"{how} of transaction {transaction.id}"
        call = json_call("POST", f"{BEGIN_PATH}/{transaction.id}:{how}", subject, body=request)
        self._next = None
        try:
            answer = await self._transport.call(call)
        except TransactionNotFoundError:
            # Either the cluster has forgotten the producer, or the coordination store was restored from a backup in
            # which the producer has a lower epoch. Partitions know this epoch.
            self._above = transaction.identity.epoch
            raise
        except ClusterError as error:
            following = error.data.get("next")
            if isinstance(following, str):
                self._next = _identity(parse_transaction_id(following))
            elif not isinstance(error, TransactionAbortedError):
                self._next = transaction.identity
            raise
        self._next = _following(decoded(answer, DecidedTransaction, subject))


def aborted(transaction: OpenTransaction, causes: Iterable[FairleadError]) -> TransactionAbortedError:
    """Return the error of a transaction that the producer aborts because some of its records were not acknowledged."""
    problem = ProblemError(
        "transaction_aborted",
        f"transaction {transaction.id} is aborted, since some of its records were not acknowledged",
        data={"transaction": transaction.id, "reason": "client", "next": None},
    )
    error = error_of(problem, subject=f"transaction {transaction.id}")
    assert isinstance(error, TransactionAbortedError), "the problem has the code of this class"
    error.__cause__ = next(iter(causes), None)
    return error


def _following(decided: DecidedTransaction) -> ProducerIdentity | None:
    return None if decided.next is None else _identity(parse_transaction_id(decided.next))


def _identity(transaction: TransactionId) -> ProducerIdentity:
    return ProducerIdentity(transaction.producer_id, transaction.epoch, is_transactional=True)
