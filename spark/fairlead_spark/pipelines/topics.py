"""Common parts of pipelines: reading and writing topics, and the options for both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead.blocking import Admin
from fairlead.errors import TopicNotFoundError
from fairlead_api.configuration import ConfigInput
from fairlead_spark.pipelines import NamedQuery, PipelineOption, PipelineOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STARTING_OFFSETS = PipelineOption(
    "startingOffsets", "Start of the first run: earliest, latest, or offsets as JSON.", "earliest"
)
MAX_OFFSETS = PipelineOption(
    "maxOffsetsPerTrigger", "Maximum number of records in one batch; empty: no limit."
)
MIN_PARTITIONS = PipelineOption(
    "minPartitions",
    "Minimum number of tasks per batch, such as the number of cores of all executors; empty: cores of the driver.",
)
PLACED = "key,value,topic,partition,offset"
"""Columns of the source that a pipeline with dead letters needs."""
RETRY_TIMEOUT = "15s"
"""Time after which the start of a pipeline fails if the cluster is unreachable."""
TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ssXXX"
"""Format of timestamps in the JSON objects that pipelines write, such as `2013-01-01T10:00:00Z`."""
WHOLE_RECORDS = {"max.message.bytes": 64 << 20}
"""Configuration of a topic to which records of other topics are copied unchanged: the highest possible size limit. With
a lower limit, a record from an input topic with better compression or a larger limit might not fit and would stop the
pipeline."""
JSON_OPTIONS = {"timestampFormat": TIME_FORMAT, "timeZone": "UTC", "ignoreNullFields": "false"}


class InputNotFound(PipelineOptionError):
    """An input topic of a pipeline does not exist."""


def read_topics(
    spark: SparkSession, options: Mapping[str, str], topics: str, *, columns: str = "", headers: bool = False
) -> DataFrame:
    """Return a stream that reads one or more topics, separated by commas, with the options of the pipeline.

    Spark reads every column of a source, even unused columns; `columns` restricts the columns that the source provides.
    """
    reader = spark.readStream.format("fairlead").option("bootstrap", options["bootstrap"])
    reader = reader.option("subscribe", topics).option("startingOffsets", options[STARTING_OFFSETS.name])
    for given in (MAX_OFFSETS.name, MIN_PARTITIONS.name):
        if options.get(given):
            reader = reader.option(given, options[given])
    if columns:
        reader = reader.option("columns", columns)
    return reader.option("includeHeaders", str(headers).lower()).load()


def write_topics(records: DataFrame, bootstrap: str) -> DataStreamWriter:
    """Return the writer for records whose column `topic` names the topic; each window is written once, when it ends."""
    return records.writeStream.format("fairlead").option("bootstrap", bootstrap).outputMode("append")


def names_in(topics: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [name.strip() for name in topics.split(",") if name.strip()]


def cluster_id(bootstrap: str) -> str:
    """Return the id of the cluster, which is the same for all its addresses. Raises `FairleadError`."""
    with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
        return admin.cluster().cluster_id


def require_topics(bootstrap: str, topics: list[str]) -> dict[str, int]:
    """Return the number of partitions of each input topic of a pipeline.

    Raises:
        InputNotFound: a topic does not exist. FairleadError: the cluster does not answer.
    """
    with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
        return {name: _partitions(admin, name, bootstrap) for name in topics}


def require_inputs(query: NamedQuery, options: Mapping[str, str]) -> None:
    """Check that all input topics of a query exist; `options` must be complete.

    Raises:
        InputNotFound: an input topic does not exist. FairleadError: the cluster does not answer.
    """
    require_topics(
        options["bootstrap"], [name for option in query.reads for name in names_in(options[option])]
    )


def ensure_topics(
    bootstrap: str,
    topics: Mapping[str, int | None],
    config: Mapping[str, ConfigInput] | None = None,
    *,
    exactly: bool = False,
) -> None:
    """Create missing topics; None means the default number of partitions in the cluster.

    `config` applies to created topics; existing topics keep their configuration. With `exactly`, an existing topic must
    not have more partitions, since producers would send a key to another partition than before.

    Raises:
        PipelineOptionError: a topic exists and has a different number of partitions.
        FairleadError: the cluster does not answer, or refuses the topic.
    """
    with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
        for name, partitions in topics.items():
            try:
                found = admin.describe_topic(name).partitions
            except TopicNotFoundError:
                admin.create_topic(name, partitions=partitions, config=config)
                continue
            if partitions is not None and (found < partitions or (exactly and found != partitions)):
                message = f"topic {name} at {bootstrap} has {found} partitions, and {partitions} are needed"
                raise PipelineOptionError(message)


def _partitions(admin: Admin, name: str, bootstrap: str) -> int:
    try:
        return admin.describe_topic(name).partitions
    except TopicNotFoundError as error:
        message = f"topic {name} is not in the cluster at {bootstrap}. {error.next_step}"
        raise InputNotFound(message) from error
