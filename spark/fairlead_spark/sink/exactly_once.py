"""Commits of a write with `exactlyOnce`, on the driver: the transactions of all tasks are committed together, or none.

A micro-batch, and a batch write with `txnAppId`, has a number. The driver commits the number with the records, as the
metadata of a named transaction: when Spark repeats a write after the driver was killed, the number shows that its
records are already committed. Beginning the named transaction fences an earlier driver, whose late commit is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final

from fairlead.producing.joint_commits import abort_each, begin_named, commit_together
from fairlead.producing.transactions import HandedOver
from fairlead.settings import seconds_of
from fairlead_api.bodies.transactions import JOINT_MAX
from fairlead_spark.clients import Connection, connection
from fairlead_spark.sink.task import WriteError
from fairlead_spark.sink.write_options import WriteOptions

LOG: Final = logging.getLogger(__name__)

TASKS_MAX: Final = JOINT_MAX - 1
"""Maximum number of tasks with records; the driver's own transaction is committed with theirs."""
NAME_PREFIX: Final = "spark."
COMMIT_SECONDS: Final = 60.0
"""Time for which the driver repeats a commit that no broker answers."""


class ExactlyOnceError(WriteError):
    """The records of a write are not committed, or the cluster did not answer whether they are committed."""


class JointWrite:
    """The transactions of one write."""

    def __init__(self, options: WriteOptions, transactions: Sequence[HandedOver]) -> None:
        self._options = options
        self._transactions = transactions

    def commit(self, name: str | None, number: int, *, is_stream: bool) -> bool:
        """Commit all transactions; return False if an earlier attempt has already committed this number.

        `name`: name of the sequence of writes; None for a write whose repetition cannot be detected. Raises
        `ExactlyOnceError`, and the errors of the SDK.
        """
        if not self._transactions:
            return True
        if len(self._transactions) > TASKS_MAX:
            message = (
                f"{len(self._transactions)} tasks have written records; exactlyOnce commits the records of at most "
                f"{TASKS_MAX} tasks together: write fewer partitions, for example with coalesce({TASKS_MAX})"
            )
            raise ExactlyOnceError(message)
        cluster = self._connection()
        transport = cluster.reads.transport
        if name is None:
            cluster.run(commit_together(transport, self._transactions))
            return True
        timeout_ms = round(seconds_of(self._options.transaction_timeout, "transactionTimeout") * 1000)
        begun = cluster.run(begin_named(transport, f"{NAME_PREFIX}{name}", timeout_ms))
        last = number_in(begun.metadata)
        if last is not None and last >= number:
            if is_stream and last > number:
                message = (
                    f"micro-batch {last} of this query is committed, but this is micro-batch {number}: the checkpoint "
                    "is older than the topic; start with a new checkpoint"
                )
                raise ExactlyOnceError(message)
            LOG.info("write %d of %s is already committed; its repetition is aborted", number, name)
            cluster.run(abort_each(transport, [each.id for each in self._transactions]))
            return False
        own, metadata = HandedOver(begun.transaction), json.dumps({"batch": number})
        cluster.run(commit_together(transport, [*self._transactions, own], metadata))
        return True

    def abort(self) -> None:
        """Abort the transactions of the tasks; if an abort fails, the cluster aborts them after their timeout."""
        try:
            cluster = self._connection()
            cluster.run(abort_each(cluster.reads.transport, [each.id for each in self._transactions]))
        except Exception:
            # Spark raises the error that failed the write.
            LOG.warning("the transactions of a failed write end after their timeout", exc_info=True)

    def _connection(self) -> Connection:
        options = self._options
        return connection(options.bootstrap, COMMIT_SECONDS, options.one_address, options.credentials)


def number_in(metadata: str | None) -> int | None:
    """Return the number of the last committed write; None before the first write. Raises `ExactlyOnceError`."""
    if metadata is None:
        return None
    try:
        number = json.loads(metadata)["batch"]
    except (ValueError, KeyError, TypeError):
        number = None
    if not isinstance(number, int):
        message = f"the last transaction was committed by another program, with the metadata {metadata!r}"
        raise ExactlyOnceError(message)
    return number
