"""Containment of unexpected errors: an error in the work of one partition must not end the broker.

Callers: tasks that work on many partitions and already handle a `LogError` of each partition. The module must not
depend on the kind of work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fairlead_broker.log import LogError
from fairlead_broker.telemetry import Log


class UnexpectedError(LogError):
    """An unexpected error ended the work on one partition or one round; the cause is chained."""


@contextmanager
def contained(log: Log, work: str, subject: object = "") -> Iterator[None]:
    """Log an unexpected error with its stack, and raise an UnexpectedError instead.

    `subject` names the partition or topic. A LogError is raised unchanged. The exception for a broken invariant is
    raised unchanged, and stops the broker.
    """
    try:
        yield
    except (LogError, AssertionError):
        raise
    except Exception as error:
        log.exception("unexpected error contained", work=work, subject=str(subject), reason=repr(error))
        msg = f"{work}: {error!r}"
        raise UnexpectedError(msg) from error
