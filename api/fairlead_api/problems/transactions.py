"""Problems with producers' transactions.

The module is a part of the problem catalogue, which `problems` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.problems.definitions import DataMember, ProblemDefinition, ProblemKind
from fairlead_api.problems.state import PARTITION, TOPIC

TRANSACTION: Final = DataMember("transaction", "id of the transaction, such as `17.4`")
NEXT: Final = DataMember(
    "next", "id of the producer's open transaction; null if the producer must begin again"
)
REASON: Final = DataMember(
    "reason",
    "cause of the end: `client`, `timeout` (the transaction was open for too long), `operator`, or `restored` (the"
    " coordination store was restored from a backup)",
)

TRANSACTION_PROBLEMS: Final = (
    ProblemDefinition(
        "transaction_not_found",
        404,
        "The transaction does not exist",
        ProblemKind.FIX,
        "The producer does not exist, has not begun this transaction, or was not used for so long that it was"
        " forgotten; a forgotten transaction is aborted.",
        "Begin a transaction with `POST /v1/transactions`.",
        data_members=(TRANSACTION,),
    ),
    ProblemDefinition(
        "transaction_committed",
        409,
        "The transaction is committed",
        ProblemKind.FIX,
        "The request would abort a transaction that an earlier request committed, or add to it.",
        "Continue with the transaction `next`.",
        data_members=(TRANSACTION, REASON, NEXT),
    ),
    ProblemDefinition(
        "transaction_aborted",
        409,
        "The transaction is aborted",
        ProblemKind.FIX,
        "The request would commit a transaction that is aborted, or add to it. Readers of committed records see none of"
        " its records.",
        "Send the records again in the transaction `next`.",
        data_members=(TRANSACTION, REASON, NEXT),
    ),
    ProblemDefinition(
        "transaction_unfinished",
        503,
        "An earlier transaction of the producer is not finished",
        ProblemKind.RETRY,
        "The same producer has an open transaction that is being ended in a partition, or partitions have not confirmed"
        " the producer's last five commits.",
        "Send the request again after a moment; if the problem persists, the partition that the problem names has no"
        " leader or too few in-sync replicas.",
        data_members=(TRANSACTION, TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "invalid_transaction",
        422,
        "The transaction's settings are invalid",
        ProblemKind.FIX,
        "The name or the timeout of a transaction is not allowed.",
        "Change the setting as the detail says.",
        data_members=(DataMember("parameter", "name of the refused setting"),),
    ),
    ProblemDefinition(
        "transaction_too_large",
        422,
        "The transaction has too many partitions",
        ProblemKind.FIX,
        "A transaction can include up to 1,000 partitions, and a joint commit up to 100 transactions.",
        "Commit more often, or write to fewer partitions in a transaction.",
        data_members=(TRANSACTION, DataMember("limit", "maximum number")),
    ),
)
