"""A Kafka cluster as an input of `from_kafka` and `compare_kafka`: its options, records and groups.

Records are read by Spark's Kafka connector, and descriptions of topics and groups by the Kafka client that the
connector includes, so jobs need no Kafka client in Python. The module must not depend on how records are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairlead import TopicPartition
from fairlead_spark.pipelines import PipelineError, PipelineOption, PipelineOptionError
from fairlead_spark.pipelines.topics import MAX_OFFSETS, STARTING_OFFSETS, InputNotFound, names_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KAFKA: Final = PipelineOption("kafka", "Addresses of Kafka's brokers, HOST:PORT separated by commas.", None)
KAFKA_CONFIG: Final = PipelineOption(
    "kafkaConfig",
    "File with properties of a Kafka client, such as TLS and SASL settings; the driver reads it.",
)
TOPICS: Final = PipelineOption("topics", "Topics of Kafka, names separated by commas.", None)
OFFSET_HEADER: Final = "kafka-offset"
"""Name of the last header of a copy, whose value is the record's offset in Kafka in decimal digits."""
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
COPIED_KEYS: Final = ("cleanup.policy", "retention.bytes", "retention.ms")
"""Configuration of a topic in Kafka that its copy is created with, so that no record expires in the copy earlier."""
CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_ADMIN: Final = "org.apache.kafka.clients.admin.AdminClient"
_TIMEOUT_MS: Final = "15000"
"""Time after which a call to Kafka fails, unless the properties of the client contain another time."""
_COMMITTED: Final = {"isolation.level": "read_committed"}
"""Records of aborted transactions are never copied."""
_NO_TIME_MS: Final = -1
"""Timestamp of records that were written before Kafka stored timestamps."""


class KafkaUnavailable(PipelineError):
    """Kafka does not answer, or refuses a request."""


class ConnectorMissing(PipelineError):
    """The session of Spark has no connector for Kafka."""


def check(pipeline: str, options: Mapping[str, str]) -> None:
    """Raise `PipelineOptionError` for options that are invalid regardless of the clusters."""
    for option in (TOPICS, KAFKA):
        if not names_in(options[option.name]):
            message = f"pipeline {pipeline} needs a name in the option {option.name}"
            raise PipelineOptionError(message)
    path = options[KAFKA_CONFIG.name]
    if path and not Path(path).is_file():
        message = f"pipeline {pipeline} has option {KAFKA_CONFIG.name}={path!r}; it must be a file"
        raise PipelineOptionError(message)


class KafkaCluster:
    """Reads a Kafka cluster with a Spark session, with the properties that the options contain."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Read the properties of the client. Raises `ConnectorMissing`."""
        self.topics: list[str] = names_in(options[TOPICS.name])
        self._spark = spark
        self._options = options
        self._address = options[KAFKA.name]
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 (only py4j reaches the client of the connector)
        _require_connector(self._jvm, spark.version)
        self._properties = self._read_properties(options[KAFKA_CONFIG.name])

    def stream(self) -> DataFrame:
        """Return a stream of the records of all topics."""
        reader = self._spark.readStream.format("kafka").options(**self._source_options())
        reader = reader.option("startingOffsets", self._options[STARTING_OFFSETS.name])
        if self._options[MAX_OFFSETS.name]:
            reader = reader.option(MAX_OFFSETS.name, self._options[MAX_OFFSETS.name])
        return reader.load()

    def records(self) -> DataFrame:
        """Return the records of all topics that Kafka has when the query starts."""
        reader = self._spark.read.format("kafka").options(**self._source_options())
        return reader.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()

    def cluster_id(self) -> str:
        """Return the id of the cluster. Raises `KafkaUnavailable`."""
        with self._admin("the cluster") as admin:
            return str(admin.describeCluster().clusterId().get())

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic. Raises `InputNotFound`, `KafkaUnavailable`."""
        found = {}
        for topic in self.topics:
            with self._admin(f"topic {topic}") as admin:
                described = admin.describeTopics(self._list([topic])).allTopicNames().get()
                found[topic] = int(described.get(topic).partitions().size())
        return found

    def configuration(self, topic: str) -> dict[str, str]:
        """Return the values of `COPIED_KEYS` that apply to a topic. Raises `InputNotFound`, `KafkaUnavailable`."""
        config = self._jvm.org.apache.kafka.common.config
        with self._admin(f"topic {topic}") as admin:
            resource = config.ConfigResource(config.ConfigResource.Type.TOPIC, topic)
            entries = admin.describeConfigs(self._list([resource])).all().get().get(resource)
            return {name: str(entries.get(name).value()) for name in COPIED_KEYS}

    def groups(self) -> list[str]:
        """Return the names of all consumer groups. Raises `KafkaUnavailable`."""
        with self._admin("the groups") as admin:
            return sorted(str(each.groupId()) for each in admin.listConsumerGroups().all().get())

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed for the topics. Raises `KafkaUnavailable`."""
        offsets = {}
        with self._admin(f"group {group}") as admin:
            committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
            for entry in committed.entrySet():
                place, value = entry.getKey(), entry.getValue()
                if value is not None and place.topic() in self.topics:
                    offsets[TopicPartition(place.topic(), place.partition())] = int(value.offset())
        return offsets

    @contextmanager
    def _admin(self, subject: str) -> Iterator[Any]:
        """Yield a client for one description of `subject`, and raise errors of the pipeline for Kafka's errors."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        properties = self._jvm.java.util.Properties()
        for name, value in {"default.api.timeout.ms": _TIMEOUT_MS, "request.timeout.ms": _TIMEOUT_MS}.items():
            properties.setProperty(name, value)
        for name, value in self._properties.items():
            properties.setProperty(name, value)
        properties.setProperty("bootstrap.servers", self._address)
        try:
            admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
            try:
                yield admin
            finally:
                admin.close()
        except Py4JJavaError as error:
            failure = error.java_exception
            cause = failure.getCause() or failure
            message = f"{subject} of Kafka at {self._address}: {cause.toString()}"
            if cause.getClass().getSimpleName() == "UnknownTopicOrPartitionException":
                raise InputNotFound(message) from error
            raise KafkaUnavailable(message) from error

    def _source_options(self) -> dict[str, str]:
        properties = {**self._properties, **_COMMITTED, "bootstrap.servers": self._address}
        options = {f"kafka.{name}": value for name, value in properties.items()}
        return {**options, "subscribe": ",".join(self.topics), "includeHeaders": "true"}

    def _read_properties(self, path: str) -> dict[str, str]:
        """Return the properties of a file, which Java reads, since the format has escapes and continued lines."""
        if not path:
            return {}
        properties = self._jvm.java.util.Properties()
        properties.load(self._jvm.java.io.StringReader(Path(path).read_text(encoding="utf-8")))
        return {str(name): str(properties.getProperty(name)) for name in properties.stringPropertyNames()}

    def _list(self, values: Sequence[object]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for value in values:
            found.add(value)
        return found


def timestamp() -> Column:
    """Return the time of a record of Kafka; null if Kafka has no time for the record."""
    from pyspark.sql import functions as sql

    return sql.when(sql.unix_millis("timestamp") != _NO_TIME_MS, sql.col("timestamp"))


def with_offset() -> Column:
    """Return the headers of a copy: the headers of the record, and last the header with its offset in Kafka."""
    return _expression(
        f"concat(coalesce(headers, cast(array() AS {HEADERS_TYPE})), "
        f"array(struct('{OFFSET_HEADER}' AS key, cast(cast(offset AS string) AS binary) AS value)))"
    )


def offset_of_copy() -> Column:
    """Return the offset in Kafka from the last header of a copy; null if another program wrote the record."""
    return _expression(
        f"CASE WHEN try_element_at(headers, -1).key = '{OFFSET_HEADER}' "
        "THEN try_cast(cast(try_element_at(headers, -1).value AS string) AS bigint) END"
    )


def content(headers: str) -> Column:
    """Return a hash of a record's key, value, time and headers, which are the expression `headers`."""
    return _expression(
        "xxhash64(key IS NULL, key, value IS NULL, value, timestamp, "
        f"coalesce({headers}, cast(array() AS {HEADERS_TYPE})))"
    )


def _expression(text: str) -> Column:
    from pyspark.sql import functions as sql

    return sql.expr(text)


def _require_connector(jvm: Any, version: str) -> None:
    """Raise `ConnectorMissing` if the session has no Kafka connector."""
    from py4j.protocol import Py4JJavaError

    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(_ADMIN, False, loader)
    except Py4JJavaError as error:
        message = (
            f"Spark has no Kafka connector; run the job with --conf spark.jars.packages={CONNECTOR}:{version}"
        )
        raise ConnectorMissing(message) from error
