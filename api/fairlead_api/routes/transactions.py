"""Routes of the calls about transactions of producers.

The module is a part of the route table, which `routes` assembles. Any broker answers every call.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import Kind, Operation, each_in_answer, each_in_body, needs, on, self_with
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.transactions import (
    AbortTransactionRequest,
    BeginRequest,
    CommitTransactionRequest,
    JointCommitAnswer,
    JointCommitRequest,
    PartitionTransactions,
    TransactionAnswer,
    TransactionDescription,
)
from fairlead_api.routes.definitions import AnswerForm, Route, Traffic
from fairlead_api.routes.query_parameters import ParameterKind, QueryParameter
from fairlead_api.routes.records import FORWARD_HEADER, PARTITION_PARAMETERS
from fairlead_api.routes.topics import AFTER, LIMIT

_TRANSACTION: Final = {"transaction": "id of the transaction, such as `17.4`"}
_PRODUCER: Final = {"transaction": "name of the producer, or id of one of its transactions, such as `17.4`"}
_STORE: Final = ("coordination_unavailable", "shutting_down")
_BODY: Final = ("body_too_large", "unsupported_media_type")
_DECISION: Final = (
    "transaction_not_found", "transaction_committed", "transaction_aborted", "producer_fenced", "not_possible_now",
    *_BODY, *_STORE,
)  # fmt: skip
_OFFSETS: Final = (
    "invalid_group_name", "not_coordinator", "member_not_found", "stale_member_epoch", "member_fenced",
    "group_not_empty", "group_too_large", "offset_out_of_range",
)  # fmt: skip
_COMMIT: Final = (
    *_DECISION, "transaction_unfinished", "transaction_too_large", "topic_not_found", "topic_recreated",
    "partition_not_found", "invalid_topic_name",
)  # fmt: skip
_COMMIT_NEEDS: Final = (
    each_in_body(Operation.WRITE, Kind.PRODUCER),
    each_in_body(Operation.WRITE, Kind.TOPIC),
    each_in_body(Operation.READ, Kind.GROUP),
    each_in_body(Operation.READ, Kind.TOPIC),
)
_DESCRIPTION_NEEDS: Final = (
    each_in_answer(Operation.DESCRIBE, Kind.PRODUCER),
    each_in_answer(Operation.DESCRIBE, Kind.TOPIC),
)
_STATE: Final = QueryParameter(
    name="state",
    kind=ParameterKind.CHOICE,
    default="all",
    choices=("all", "open", "unfinished"),
    explanation="`open`: only producers with a transaction that is open in a partition of a broker that answers; "
    "`unfinished`: only producers with commits that partitions have not confirmed",
)
_NAMES: Final = QueryParameter(
    name="name",
    kind=ParameterKind.TEXT,
    maximum=249,
    explanation="only names that begin with this text",
)


def _json(type_: object, explanation: str, status: int = 200) -> AnswerForm:
    return AnswerForm(status=status, type=type_, media_types=(JSON,), explanation=explanation)


TRANSACTION_ROUTES: Final = (
    Route(
        name="begin_transaction",
        traffic=Traffic.ROUTINE,
        method="POST",
        path="/v1/transactions",
        summary="Begin a transaction; an open transaction of the same name is aborted and its producer is fenced",
        access=self_with(each_in_body(Operation.WRITE, Kind.PRODUCER)),
        request=BeginRequest,
        body_types=(JSON,),
        is_body_optional=True,
        answers=(_json(TransactionAnswer, "the open transaction", 201),),
        problems=("invalid_transaction", "conflict", "not_possible_now", *_BODY, *_STORE),
    ),
    Route(
        name="commit_transaction",
        traffic=Traffic.ROUTINE,
        method="POST",
        path="/v1/transactions/{transaction}:commit",
        summary="Commit a transaction: all of its records, or none, become visible to readers of committed records",
        access=self_with(*_COMMIT_NEEDS),
        path_parameters=_TRANSACTION,
        request=CommitTransactionRequest,
        body_types=(JSON,),
        is_body_optional=True,
        answers=(_json(DecidedTransaction, "the transaction is committed"),),
        problems=(*_COMMIT, *_OFFSETS),
    ),
    Route(
        name="commit_transactions",
        traffic=Traffic.ROUTINE,
        method="POST",
        path="/v1/transactions:commit",
        summary="Commit transactions of several producers together: all of them, or none",
        access=self_with(*_COMMIT_NEEDS),
        request=JointCommitRequest,
        body_types=(JSON,),
        answers=(_json(JointCommitAnswer, "all transactions are committed"),),
        problems=(*_COMMIT, *_OFFSETS),
    ),
    Route(
        name="abort_transaction",
        traffic=Traffic.ROUTINE,
        method="POST",
        path="/v1/transactions/{transaction}:abort",
        summary="Abort a transaction, or the open transaction of a producer: readers of committed records see none of "
        "its records",
        access=self_with(each_in_body(Operation.WRITE, Kind.PRODUCER)),
        path_parameters=_PRODUCER,
        request=AbortTransactionRequest,
        body_types=(JSON,),
        is_body_optional=True,
        answers=(_json(DecidedTransaction, "the transaction is aborted"),),
        problems=_DECISION,
    ),
    Route(
        name="list_transactions",
        traffic=Traffic.ROUTINE,
        method="GET",
        path="/v1/transactions",
        summary="Producers with transactions, page by page in a fixed order",
        access=self_with(*_DESCRIPTION_NEEDS),
        query=(_STATE, _NAMES, LIMIT, AFTER),
        answers=(_json(Page[TransactionDescription], "one page of producers; a page may be short"),),
        problems=_STORE,
    ),
    Route(
        name="describe_transaction",
        traffic=Traffic.ROUTINE,
        method="GET",
        path="/v1/transactions/{transaction}",
        summary="The transactions of a producer, and the partitions in which one is open",
        access=self_with(*_DESCRIPTION_NEEDS),
        path_parameters=_PRODUCER,
        answers=(_json(TransactionDescription, "the producer's transactions"),),
        problems=("transaction_not_found", *_STORE),
    ),
    Route(
        name="delete_transaction",
        method="DELETE",
        path="/v1/transactions/{transaction}",
        summary="Forget a producer and its name, and abort its open transaction",
        access=self_with(each_in_body(Operation.DELETE, Kind.PRODUCER)),
        path_parameters=_PRODUCER,
        answers=(AnswerForm(status=204, explanation="the producer is forgotten"),),
        problems=("transaction_not_found", "transaction_unfinished", *_STORE),
    ),
    Route(
        name="partition_transactions",
        traffic=Traffic.ROUTINE,
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/transactions",
        summary="The open transactions of a partition",
        access=needs(on(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=PARTITION_PARAMETERS,
        headers=(FORWARD_HEADER,),
        answers=(_json(PartitionTransactions, "open transactions, oldest first"),),
        problems=(
            "topic_not_found",
            "topic_recreated",
            "invalid_topic_name",
            "partition_not_found",
            "not_leader",
            "no_leader",
            "offset_not_available",
            *_STORE,
        ),
    ),
)
