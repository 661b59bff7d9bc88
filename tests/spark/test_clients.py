"""Tests of the connections of a Python worker: one client for each cluster and process, and none in pickles."""

from __future__ import annotations

import os
import pickle
import pickletools
from multiprocessing import get_context

import pytest

from fairlead.errors import SettingError
from fairlead_spark import clients
from refusals import raises

types = pytest.importorskip("pyspark.sql.types", reason="these tests need the extra spark")

from fairlead_spark.options import ReadOptions  # noqa: E402 - needs pyspark
from fairlead_spark.sink import batch_writer, stream_writer  # noqa: E402
from fairlead_spark.source.readers import BatchReader, StreamReader  # noqa: E402

SECONDS_MAX = 60
VALUES = types.StructType([types.StructField("value", types.BinaryType())])
OF_CLIENTS = (
    "fairlead.",
    "fairlead_spark.clients",
    "asyncio",
    "threading",
    "_thread",
    "pyreqwest",
    "pyarrow",
)


def topics_of(bootstrap: str) -> int:
    """Request the topics of a cluster twice with the clients of this process, and return the process id."""
    first, second = clients.admin(bootstrap), clients.admin(bootstrap)
    assert first is second
    assert clients.connection(bootstrap) is clients.connection(bootstrap)
    first.list_topics()
    return os.getpid()


def modules_of(pickled: bytes) -> set[str]:
    """Return the modules of the objects in a pickle, and all other texts in the pickle."""
    return {
        str(argument).split(" ")[0] for _, argument, _ in pickletools.genops(pickled) if argument is not None
    }


def test_a_process_has_one_client_of_a_cluster(bootstrap: str) -> None:
    """A call with the same addresses and timeouts returns the same client, and other values return another client."""
    assert clients.admin(bootstrap) is clients.admin(bootstrap)
    assert clients.connection(bootstrap) is clients.connection(bootstrap)
    assert clients.admin(bootstrap, 5.0) is not clients.admin(bootstrap)
    assert clients.connection(bootstrap, 5.0) is not clients.connection(bootstrap)
    assert topics_of(bootstrap) == os.getpid()


def test_workers_that_one_daemon_forks_have_clients_of_their_own(bootstrap: str) -> None:
    """Workers that are forked like Spark's workers each use their own connections to the cluster."""
    with get_context("forkserver").Pool(2, maxtasksperchild=1) as workers:
        calls = [workers.apply_async(topics_of, (bootstrap,)) for _ in range(2)]
        processes = {call.get(SECONDS_MAX) for call in calls}

    assert len(processes) == 2
    assert os.getpid() not in processes


def test_a_fork_does_not_use_the_clients_of_its_parent(bootstrap: str) -> None:
    """A child of a process with clients fails at once when it uses them, and the parent's client continues to work."""
    topics_of(bootstrap)
    with get_context("fork").Pool(1) as child, raises(SettingError, "fork"):
        child.apply_async(topics_of, (bootstrap,)).get(SECONDS_MAX)

    assert topics_of(bootstrap) == os.getpid()


def test_readers_and_writers_hold_no_client(bootstrap: str, hundred: str) -> None:
    """After use on the driver, readers and writers are pickled as options and names, and work in another process."""
    given = {"bootstrap": bootstrap, "subscribe": hundred, "startingOffsets": "earliest"}
    batch, stream = BatchReader(ReadOptions.parse(given)), StreamReader(ReadOptions.parse(given))
    tasks = batch.partitions()
    begin = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(begin, stream.getDefaultReadLimit())
    written = {"bootstrap": bootstrap, "topic": hundred}
    writers = [batch_writer(written, VALUES, False), stream_writer(written, VALUES, False)]

    for each in [batch, stream, *tasks, *stream.partitions(begin, end), *writers]:
        pickled = pickle.dumps(each)
        assert not [name for name in modules_of(pickled) if name.startswith(OF_CLIENTS)]
        assert type(pickle.loads(pickled)) is type(each)
    arrived = pickle.loads(pickle.dumps(batch))
    assert sum(rows.num_rows for task in tasks for rows in arrived.read(task)) == 100
