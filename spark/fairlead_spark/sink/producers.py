"""Pool of the producers in a worker process: a task uses a producer exclusively and returns it for later tasks.

A worker runs many tasks, and connections and the identity of an idempotent producer should be kept from one micro-batch
to the next. The producer of a failed task is never reused, since some of its batches may still be in flight. The
producer of a failed task is aborted before the failure is raised: Spark writes the same rows again with another
producer, and batches that the failed producer sent late would follow newer records in the topic.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from fairlead.blocking import Producer
from fairlead.settings import seconds_of
from fairlead_spark.sink.write_options import WriteOptions

LOG: Final = logging.getLogger(__name__)

METADATA_SECONDS_MAX: Final = 30.0
"""Maximum time for which a task looks for a broker that answers; a shorter `deliveryTimeout` also limits this time."""

_idle: dict[tuple[int, WriteOptions], list[Producer]] = {}
"""Idle producers by process id and by options without the topic. The key includes the process id, since a producer that
a fork inherits has no threads."""


@contextmanager
def borrowed_producer(options: WriteOptions) -> Iterator[Producer]:
    """Yield a started producer, which must be flushed before the block ends and is reused after the block.

    After an error in the block, the producer is aborted and sends no more records.
    """
    idle = _idle.setdefault((os.getpid(), dataclasses.replace(options, topic=None)), [])
    producer = idle.pop() if idle else opened(options)
    try:
        yield producer
    except BaseException:
        abort(producer)
        raise
    idle.append(producer)


def close_idle() -> None:
    """Close the idle producers of this process; a worker that Spark kills before this call loses no record."""
    for (pid, _), idle in _idle.items():
        while pid == os.getpid() and idle:
            idle.pop().close()


atexit.register(close_idle)


def abort(producer: Producer) -> None:
    """Abort the producer of a failed task; an abort error is only logged, since the task's error is raised."""
    try:
        producer.abort()
    except Exception:
        LOG.warning("the producer of a failed task could not be aborted", exc_info=True)


def opened(options: WriteOptions) -> Producer:
    """Return a started producer; with `exactlyOnce`, a producer with transactions."""
    delivery_seconds = seconds_of(options.delivery_timeout, "deliveryTimeout")
    return Producer(
        options.bootstrap,
        acks=options.acks,
        compression=options.compression,
        idempotence=options.idempotent,
        transactional=options.exactly_once,
        transaction_timeout=options.transaction_timeout,
        delivery_timeout=options.delivery_timeout,
        columnar_batch_bytes=options.batch_bytes,
        one_address=options.one_address,
        follow_moves=options.follow_moves,
        **options.credentials.arguments(),
        retry_timeout=timedelta(seconds=min(delivery_seconds, METADATA_SECONDS_MAX)),
    ).start()
