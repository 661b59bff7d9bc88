"""Transactions of the tasks of a write with `exactlyOnce`: each task attempt writes into a transaction of its own.

The driver commits the transactions of the successful attempts. A failed attempt aborts its transaction, and the cluster
aborts the transaction of a killed attempt after its timeout. A worker keeps the producer of a query, so that the next
micro-batch continues with the next transaction, without a call.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fairlead_spark.sink.producers import abort, opened

if TYPE_CHECKING:
    from fairlead.blocking import Producer
    from fairlead_spark.sink.write_options import WriteOptions

KEPT_SECONDS: Final = 1200.0
"""Seconds for which a producer is kept; the cluster forgets the transactions of an unused producer after an hour."""


@dataclass(frozen=True, slots=True)
class Query:
    """Micro-batch of a streaming query to which a task belongs."""

    id: str
    """Id of the query, which stays the same while its checkpoint exists."""
    batch: int


@dataclass(slots=True)
class _Kept:
    producer: Producer
    batch: int
    used: float


_kept: dict[tuple[int, WriteOptions, str], list[_Kept]] = {}
"""Producers by process id, options without the topic, and query. A producer that a fork inherits has no threads."""


@contextmanager
def transactional_producer(options: WriteOptions, query: Query | None) -> Iterator[Producer]:
    """Yield a transactional producer; the block must hand over its transaction to the driver before the block ends.

    After an error in the block, the producer is closed. `query`: None for a batch write, whose producer is closed at
    the end of the block.
    """
    producer = _taken(options, query) or opened(options)
    try:
        yield producer
    except BaseException:
        abort(producer)
        raise
    if query is None:
        producer.close()
    else:
        kept = _kept.setdefault(_key(options, query), [])
        kept.append(_Kept(producer, query.batch, time.monotonic()))  # noqa: TID251 - a Spark task measures time


def close_kept() -> None:
    """Close the kept producers of this process."""
    for (pid, _, _), kept in _kept.items():
        while pid == os.getpid() and kept:
            kept.pop().producer.close()


atexit.register(close_kept)


def _taken(options: WriteOptions, query: Query | None) -> Producer | None:
    """Return a kept producer whose last transaction is decided; close unusable producers found before it.

    Spark decides a micro-batch before it starts the next one. A repeated micro-batch therefore needs a new producer.
    """
    if query is None:
        return None
    kept = _kept.get(_key(options, query), [])
    while kept:
        found = kept.pop()
        if found.batch < query.batch and time.monotonic() - found.used < KEPT_SECONDS:  # noqa: TID251 - a Spark task
            return found.producer
        found.producer.close()
    return None


def _key(options: WriteOptions, query: Query) -> tuple[int, WriteOptions, str]:
    return os.getpid(), dataclasses.replace(options, topic=None), query.id
