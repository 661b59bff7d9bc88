"""Error classes by kind, and the errors that are raised without the cluster.

The package docstring shows the whole class hierarchy. Every package of the client uses this module, which must not
depend on the code of any particular problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

from fairlead_api.problems import JSON, ProblemError, ProblemKind, SideEffect


class FairleadError(Exception):
    """Base class of all errors that the client raises."""


class ClusterError(FairleadError):
    """Refusal of a request by the cluster: the attempted action, the problem, and the broker that answered.

    A problem without its own class (a code of a newer server) is raised as the class of its kind.
    """

    code_of_class: ClassVar[str | None] = None
    by_code: ClassVar[dict[str, type[ClusterError]]] = {}

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        """Register the exception class of one problem code."""
        super().__init_subclass__()
        if code is not None:
            cls.code_of_class = code
            ClusterError.by_code[code] = cls

    def __init__(
        self, problem: ProblemError, *, subject: str, broker: str | None = None, advice: str | None = None
    ) -> None:
        self.problem = problem
        self.subject = subject
        self.broker = broker
        self._advice = advice
        super().__init__(problem, subject, broker)

    def __str__(self) -> str:
        where = f" from {self.broker}" if self.broker else ""
        return f"{self.subject}: {self.detail} ({self.code}{where}). {self.next_step}"

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling; the problem is pickled as its document."""
        return _revive, (self.problem, self.subject, self.broker, self._advice)

    @property
    def code(self) -> str:
        """Stable name of the problem; every code has a page under `/problems/`."""
        return self.problem.code

    @property
    def kind(self) -> ProblemKind:
        """Kind of the problem, which decides the next step."""
        return self.problem.kind

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """Description of this occurrence of the problem, with its subject and numbers."""
        return self.problem.detail

    @property
    def next_step(self) -> str:
        """Recommended next step: the advice of this error, or else the catalogue's next step for the code."""
        return self.problem.definition.next_step if self._advice is None else self._advice

    @property
    def data(self) -> Mapping[str, JSON]:
        """Data members that the catalogue defines for the code, for example `limit_bytes`."""
        return self.problem.data

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when it is sent again."""
        return self.problem.retryable

    @property
    def side_effect(self) -> SideEffect:
        """Whether the refused request may nevertheless have taken effect."""
        return self.problem.side_effect

    @property
    def retry_after_seconds(self) -> float | None:
        """Seconds that the server asks the client to wait; None if the server does not ask for a pause."""
        return self.problem.retry_after_seconds


class RetryError(ClusterError):
    """The same request may succeed later; the client has already retried until a deadline."""


class RefreshError(ClusterError):
    """The client's metadata was out of date; the client has refreshed the metadata and retried until a deadline."""


class FixError(ClusterError):
    """The request is invalid: retries cannot succeed until the caller changes the request."""


class FencedError(ClusterError):
    """A newer process has taken over this identity: the program should stop."""


class DataLossError(ClusterError):
    """Expected records are lost or cannot be verified: an operator or a policy must decide how to continue."""


class BugError(ClusterError):
    """The server failed unexpectedly: report the failure."""


_CLASS_OF_KIND: Final[Mapping[ProblemKind, type[ClusterError]]] = {
    ProblemKind.RETRY: RetryError,
    ProblemKind.REFRESH: RefreshError,
    ProblemKind.FIX: FixError,
    ProblemKind.FENCED: FencedError,
    ProblemKind.DATA_LOSS: DataLossError,
    ProblemKind.BUG: BugError,
}


class UnreachableError(FairleadError):
    """No broker answered: connections were refused, broke or timed out.

    `attempts` contains the cause for each address.
    """

    def __init__(self, subject: str, attempts: Mapping[str, str], *, sent: bool) -> None:
        self.subject = subject
        self.attempts = dict(attempts)
        self.side_effect = SideEffect.MAYBE if sent else SideEffect.NONE
        super().__init__(subject, self.attempts)

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling."""
        sent = self.side_effect is SideEffect.MAYBE
        return partial(UnreachableError, sent=sent), (self.subject, self.attempts)

    def __str__(self) -> str:
        tried = "; ".join(f"{address}: {cause}" for address, cause in self.attempts.items())
        return f"{self.subject}: no answer ({tried}). Check the bootstrap addresses and whether a broker is running."


class DeliveryTimeoutError(FairleadError):
    """Records were not acknowledged within `delivery_timeout`; the cause is the last refusal, if any.

    `side_effect` is `maybe` if the outcome of an attempt is unknown: the records may have been stored.
    """

    def __init__(
        self,
        subject: str,
        *,
        record_count: int,
        waited_seconds: float,
        attempts: int,
        side_effect: SideEffect,
    ) -> None:
        self.subject = subject
        self.record_count = record_count
        self.waited_seconds = waited_seconds
        self.attempts = attempts
        self.side_effect = side_effect
        super().__init__(subject, record_count, waited_seconds, attempts, side_effect)

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, with the last refusal as the cause."""
        named = partial(
            DeliveryTimeoutError,
            record_count=self.record_count,
            waited_seconds=self.waited_seconds,
            attempts=self.attempts,
            side_effect=self.side_effect,
        )
        return named, (self.subject,), {"__cause__": self.__cause__}

    def __str__(self) -> str:
        stored = "may have been stored" if self.side_effect is SideEffect.MAYBE else "were not stored"
        return (
            f"{self.subject}: {self.record_count} records were not acknowledged after {self.waited_seconds:.3f} s "
            f"and {self.attempts} attempts; they {stored}. Last refusal: {self.__cause__ or 'none'}"
        )


class ProcessingTimeoutError(FairleadError):
    """The next batch was not taken within `processing_timeout`: the member left its group.

    `position` is the base offset of the batch that was taken last. The batch taken last was not committed, and the new
    owner of the partition reads that batch again. The consumer joins the group again when the program continues to
    iterate.
    """

    def __init__(
        self, group: str, *, limit_seconds: float, partition: str | None, position: int | None
    ) -> None:
        self.group = group
        self.limit_seconds = limit_seconds
        self.partition = partition
        self.position = position
        super().__init__(group, limit_seconds, partition, position)

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling."""
        named = partial(
            ProcessingTimeoutError,
            limit_seconds=self.limit_seconds,
            partition=self.partition,
            position=self.position,
        )
        return named, (self.group,)

    def __str__(self) -> str:
        what = (
            "no batch was taken"
            if self.partition is None
            else f"the batch of {self.partition} at offset {self.position} is not finished"
        )
        return (
            f"group {self.group}: {what} after processing_timeout={self.limit_seconds:g}s, so the member left the "
            f"group and other members have its partitions; uncommitted records are read again. Set processing_timeout "
            f"above the longest processing time of a batch, make batches smaller (partition_fetch_bytes_max), or pause "
            f"the partitions and keep taking batches while another task does the work. To join again, iterate again."
        )


class CommitUnknownError(FairleadError):
    """A commit received no definite answer in time: the transaction is committed or aborted as a whole.

    The producer continues with a new transaction. If the producer has a name, the new transaction aborts the
    transaction with the unknown outcome, unless that transaction is committed.
    """

    def __init__(self, transaction: str, waited_seconds: float) -> None:
        self.transaction = transaction
        self.waited_seconds = waited_seconds
        super().__init__(transaction, waited_seconds)

    def __str__(self) -> str:
        return (
            f"commit of transaction {self.transaction}: no definite answer within {self.waited_seconds:.1f} s. Find "
            "out whether its records are visible to readers of committed records before you send them again."
        )


class NoCommittedOffsetError(FairleadError):
    """A partition has no committed offset, which is an error if the consumer has `start="none"`."""

    def __init__(self, group: str, partition: str) -> None:
        self.group = group
        self.partition = partition
        super().__init__(group, partition)

    def __str__(self) -> str:
        return (
            f"group {self.group} has no committed offset for {self.partition}, and start is none. Seek to an offset, "
            f'reset the group\'s offsets, or choose start="earliest", "latest" or a duration.'
        )


class SettingError(FairleadError, ValueError):
    """A setting or argument is invalid: the error contains its name, its value and the allowed values."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(name, value, allowed)

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} is not allowed: {self.allowed}"


def second_start() -> SettingError:
    """Return the error for a second `start`, which would lose track of the running tasks."""
    return SettingError(
        "start", "called while it is open", "once: by `with` or `async with`, or by hand with `close`"
    )


class RecordError(FairleadError, TypeError):
    """A record cannot be sent: the error contains the field, its value and the allowed values."""

    def __init__(self, topic: str, field: str, given: str, allowed: str) -> None:
        self.topic = topic
        self.field = field
        super().__init__(topic, field, given, allowed)

    def __str__(self) -> str:
        topic, field, given, allowed = self.args
        return f"record for {topic}: {field} is {given}; {allowed}"


class ClosedError(FairleadError):
    """The object was used before it was started or after it was closed."""

    def __init__(self, subject: str, where: str = "inside `async with`") -> None:
        super().__init__(subject, where)

    def __str__(self) -> str:
        return f"the {self.args[0]} is not open: use it {self.args[1]}"


def error_of(
    problem: ProblemError, *, subject: str, broker: str | None = None, advice: str | None = None
) -> ClusterError:
    """Return a problem as an error of the class for its code or, if the code is unknown, for its kind.

    `advice` replaces the advice of the catalogue where the catalogue addresses a different caller.
    """
    known = ClusterError.by_code.get(problem.code)
    chosen = known if known is not None else _CLASS_OF_KIND[problem.kind]
    return chosen(problem, subject=subject, broker=broker, advice=advice)


def _revive(problem: ProblemError, subject: str, broker: str | None, advice: str | None) -> ClusterError:
    return error_of(problem, subject=subject, broker=broker, advice=advice)
