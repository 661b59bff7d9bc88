"""MirrorMaker 2 between two Kafka nodes, as a peer of links: its jars, its properties and its process.

The cases of `cluster_parts/links.py` use this module, which must not depend on workloads.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from peers.brokers import HERE, KAFKA_VERSION, KafkaPeer, PeerFailedError, fetch_jars

STOP_SECONDS_MAX: Final = 60.0
TASKS: Final = 2
"""Number of tasks with tuned settings: one for each core."""
PROPERTIES: Final = """
clusters = {alias}, target
{alias}.bootstrap.servers = {source}
target.bootstrap.servers = {target}
{alias}->target.enabled = true
target->{alias}.enabled = false
topics = {topic}
groups =
refresh.topics.interval.seconds = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
sync.topic.acls.enabled = false
replication.factor = 1
{alias}.offset.storage.replication.factor = 1
{alias}.config.storage.replication.factor = 1
{alias}.status.storage.replication.factor = 1
target.offset.storage.replication.factor = 1
target.config.storage.replication.factor = 1
target.status.storage.replication.factor = 1
offset-syncs.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
"""
TUNED: Final = f"""
tasks.max = {TASKS}
{{alias}}.consumer.fetch.min.bytes = 1048576
{{alias}}.consumer.max.partition.fetch.bytes = 4194304
{{alias}}.consumer.max.poll.records = 50000
{{alias}}.consumer.receive.buffer.bytes = 4194304
target.producer.batch.size = 500000
target.producer.linger.ms = 10
target.producer.buffer.memory = 134217728
"""
"""Settings with the same batches as the producers and consumers of other cases, and a task for each core."""


def fetch_mirror_maker(cache: Path) -> Path:
    """Return the folder with the jars, which Maven downloads into `cache` unless they are already there."""
    definition = HERE.parent / "tests/kafka_clients/java/connect-mirror.xml"
    return fetch_jars(definition, cache / f"connect-mirror-{KAFKA_VERSION}")


@contextmanager
def mirror_maker(
    folder: Path, jars: Path, source: KafkaPeer, target: KafkaPeer, topic: str, *, tuned: bool
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Copy a topic until the end of the block; yield the process and the name of the copy."""
    alias = "tuned" if tuned else "defaults"
    text = (PROPERTIES + TUNED if tuned else PROPERTIES).format(
        alias=alias, source=source.bootstrap, target=target.bootstrap, topic=topic
    )
    properties, log = folder / f"{alias}.properties", folder / f"{alias}.log"
    properties.write_text(text, encoding="ascii")
    command = ["java", "-Xmx1G", "org.apache.kafka.connect.mirror.MirrorMaker", str(properties)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "CLASSPATH": f"{HERE / 'peers/kafka'}:{jars}/*"},
        )
    try:
        yield process, f"{alias}.{topic}"
        if process.poll() is not None:
            msg = f"MirrorMaker ended: {log.read_text()[-2000:]}"
            raise PeerFailedError(msg)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
