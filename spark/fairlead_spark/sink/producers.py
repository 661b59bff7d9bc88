"""The producers of a worker process: a task takes one for itself and leaves it to the next task.

Workers live for many tasks, so that connections and the identity of the idempotent producer outlive a micro-batch. The
producer of a failed task is never used again: some of its batches may still be under way. It is aborted before the
failure is raised: Spark writes the same rows with another producer, and later batches of this one would follow newer
values in the topic.
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
"""How long a task looks for a broker that answers; less where `deliveryTimeout` is less."""

_idle: dict[tuple[int, WriteOptions], list[Producer]] = {}
"""By how they write, to whatever topic; by process too: what a fork inherits has no threads in the child."""


@contextmanager
def borrowed_producer(options: WriteOptions) -> Iterator[Producer]:
    """Lend a started producer; it comes back only where the block ends without an error, and must be flushed then.

    Where the block ends with one, the producer sends nothing more when this returns.
    """
    idle = _idle.setdefault((os.getpid(), dataclasses.replace(options, topic=None)), [])
    producer = idle.pop() if idle else _opened(options)
    try:
        yield producer
    except BaseException:
        _abort(producer)
        raise
    idle.append(producer)


def close_idle() -> None:
    """Close unused producers of this process; a worker that Spark ends without this call loses no record."""
    for (pid, _), idle in _idle.items():
        while pid == os.getpid() and idle:
            idle.pop().close()


atexit.register(close_idle)


def _abort(producer: Producer) -> None:
    """End a producer whose task has failed, without an error of its own: the error of the task is raised."""
    try:
        producer.abort()
    except Exception:
        LOG.warning("a producer whose task had failed could not be ended", exc_info=True)


def _opened(options: WriteOptions) -> Producer:
    delivery_seconds = seconds_of(options.delivery_timeout, "deliveryTimeout")
    return Producer(
        options.bootstrap,
        acks=options.acks,
        compression=options.compression,
        idempotence=options.idempotent,
        delivery_timeout=options.delivery_timeout,
        columnar_batch_bytes=options.batch_bytes,
        retry_timeout=timedelta(seconds=min(delivery_seconds, METADATA_SECONDS_MAX)),
    ).start()
