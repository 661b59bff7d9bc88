"""Bodies of the calls about transactions, and their limits.

The broker decodes the requests; the SDK and the CLI read the answers. This module must not depend on how a transaction
is decided.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NoReturn, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from fairlead_api.bodies.decided_transactions import DecidedTransaction, OutcomeName
from fairlead_api.bodies.group_requests import CommitRequest
from fairlead_api.bodies.json_bodies import Request
from fairlead_api.bodies.metadata import Answer
from fairlead_api.bodies.requests import EpochNumber, PartitionNumber, TopicIdText
from fairlead_api.identifiers import check_group_name
from fairlead_api.problems import ProblemError

TIMEOUT_MS_DEFAULT: Final = 60_000
TIMEOUT_MS_MIN: Final = 1_000
PARTITIONS_MAX: Final = 1_000
"""Maximum number of partitions of a transaction."""
METADATA_BYTES_MAX: Final = 256
JOINT_MAX: Final = 100
"""Maximum number of transactions that are committed together."""

TransactionState: TypeAlias = Literal["open", "unfinished", "ended"]
"""State of a transaction. `open`: not decided, with or without records. `unfinished`: committed, but some partitions
have not confirmed the commit. `ended`: aborted, or committed and confirmed by all partitions."""


class BeginRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/transactions`. An open transaction of the same name is aborted.

    `above` is an epoch that the new epoch must exceed, for producers that kept running during a restore of the
    coordination store.
    """

    name: str | None = None
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    above: EpochNumber | None = None

    def __post_init__(self) -> None:
        """Raise `invalid_transaction` for a name or timeout that is never allowed."""
        if self.name is not None:
            try:
                check_group_name(self.name)
            except ProblemError as problem:
                raise ProblemError(
                    "invalid_transaction", problem.detail, data={"parameter": "name"}
                ) from problem
        if self.timeout_ms < TIMEOUT_MS_MIN:
            raise ProblemError(
                "invalid_transaction",
                f"timeout_ms {self.timeout_ms} is not allowed; allowed: from {TIMEOUT_MS_MIN}",
                data={"parameter": "timeout_ms"},
            )


class TransactionAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/transactions`: the new transaction, such as `17.4`.

    `metadata` is the text that the last commit with this name contained.
    """

    transaction: str
    producer_id: int
    producer_epoch: int
    name: str | None
    timeout_ms: int
    metadata: str | None


class TopicPartitions(Request, frozen=True, kw_only=True):
    """Partitions of one topic, which is given by its name, its id, or both."""

    topic: str | None = None
    topic_id: TopicIdText | None = None
    partitions: Annotated[tuple[PartitionNumber, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raise `malformed_request` unless the topic is given."""
        if self.topic is None and self.topic_id is None:
            _refuse("partitions", "an entry without topic", "topic, topic_id or both")


class TransactionOffsets(CommitRequest, frozen=True, kw_only=True):
    """Offsets of a consumer group that are committed together with a transaction; a member sends its id and epoch."""

    group: str

    def __post_init__(self) -> None:
        """Raise `invalid_group_name` for an invalid group name, and the problems of `CommitRequest`."""
        check_group_name(self.group)
        super().__post_init__()


class CommitTransactionRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/transactions/{transaction}:commit`.

    `partitions` are all partitions with acknowledged records of the transaction. Partitions of produce calls with the
    header `Fairlead-Transaction` may be omitted, because the broker knows them. `offsets` are offsets of a group that
    are stored if and only if the transaction is committed. `metadata` is a text that is returned when a
    producer with the same name begins its next transaction.
    """

    partitions: tuple[TopicPartitions, ...] = ()
    offsets: TransactionOffsets | None = None
    metadata: str | None = None

    def __post_init__(self) -> None:
        """Raise `malformed_request` for a metadata text that is too long."""
        _check_metadata(self.metadata)


class AbortTransactionRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/transactions/{transaction}:abort`.

    `partitions` may be left out: the leaders of all partitions learn of the abort.
    """

    partitions: tuple[TopicPartitions, ...] = ()


class JointTransaction(Request, frozen=True, kw_only=True):
    """One of the transactions that are committed together; its fields are those of `CommitTransactionRequest`."""

    transaction: str
    partitions: tuple[TopicPartitions, ...] = ()
    metadata: str | None = None

    def __post_init__(self) -> None:
        """Raise `malformed_request` for a metadata text that is too long."""
        _check_metadata(self.metadata)


class JointCommitRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/transactions:commit`: up to 100 transactions of different producers.

    `offsets` are offsets of a group that are stored if and only if the transactions are committed.
    """

    transactions: Annotated[tuple[JointTransaction, ...], Meta(min_length=1, max_length=JOINT_MAX)]
    offsets: TransactionOffsets | None = None

    def __post_init__(self) -> None:
        """Raise `malformed_request` for two transactions of one producer."""
        producers = [each.transaction.partition(".")[0] for each in self.transactions]
        if len(set(producers)) < len(producers):
            _refuse("transactions", "two transactions of one producer", "one transaction of each producer")


class JointCommitAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/transactions:commit`: the committed transactions, in the order of the request."""

    transactions: list[DecidedTransaction]


class NamedPartitions(Answer, frozen=True, kw_only=True):
    """Partitions of one topic; `topic` is null if the topic was deleted."""

    topic: str | None
    topic_id: str
    partitions: list[int]


class UnfinishedTransaction(Answer, frozen=True, kw_only=True):
    """Committed transaction whose markers some partitions have not confirmed."""

    transaction: str
    partitions: list[NamedPartitions]


class EndedTransactionAnswer(Answer, frozen=True, kw_only=True):
    """The newest decided transaction of a producer; `at` is an RFC 3339 timestamp."""

    transaction: str
    state: OutcomeName
    reason: str
    at: str


class OpenPartition(Answer, frozen=True, kw_only=True):
    """Partition in which a transaction of the producer is open, with its leader."""

    transaction: str
    topic: str | None
    partition: int
    first_offset: int
    age_seconds: float
    leader: int


class TransactionDescription(Answer, frozen=True, kw_only=True):
    """Transactions of a producer. `transaction` is the requested or, in a list, the newest transaction.

    Only the answer about one producer has `open_at`, the partitions in which a transaction is open, and
    `silent_brokers`, the brokers that did not answer.
    """

    transaction: str
    name: str | None
    state: TransactionState
    timeout_ms: int
    ended: EndedTransactionAnswer | None
    named: list[NamedPartitions]
    unfinished: list[UnfinishedTransaction]
    metadata: str | None
    owner: str | None
    open_at: list[OpenPartition] | UnsetType = UNSET
    silent_brokers: list[int] | UnsetType = UNSET


class PartitionTransaction(Answer, frozen=True, kw_only=True):
    """Open transaction in a partition. `timeout_ms` is null if the coordination store has no record of its producer."""

    transaction: str
    first_offset: int
    age_seconds: float
    timeout_ms: int | None


class PartitionTransactions(Answer, frozen=True, kw_only=True):
    """Answer to `GET .../partitions/{partition}/transactions`: the open transactions, oldest first."""

    last_stable_offset: int
    high_watermark: int
    items: list[PartitionTransaction]


def _check_metadata(metadata: str | None) -> None:
    if metadata is not None and len(metadata.encode()) > METADATA_BYTES_MAX:
        _refuse("metadata", "a longer text", f"up to {METADATA_BYTES_MAX} bytes")


def _refuse(parameter: str, value: str, allowed: str) -> NoReturn:
    raise ProblemError(
        "malformed_request",
        f"{parameter}: {value} is not allowed; allowed: {allowed}",
        data={"parameter": parameter, "allowed": allowed},
    )
