"""Kafka's Java client through Kafka's own tools, in the newest version and in the oldest version that brokers serve.

Maven downloads the jars into the user's cache.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from client_programs import cache
from client_steps import (
    SECONDS_MAX,
    Client,
    ClientFailed,
    ClientMissing,
    Steps,
    Target,
    check,
    finished,
)
from confluent_kafka import KafkaException, Producer

BENCHMARKS: Final = Path(__file__).parents[2] / "benchmarks"
# Only for the import: the folder has modules with names of the simulator's packages.
sys.path.append(str(BENCHMARKS))

from peers.brokers import KAFKA_VERSION, fetch_jars, fetch_kafka

sys.path.remove(str(BENCHMARKS))

OLDEST: Final = "2.1.1"
TOOLS: Final = "org.apache.kafka.tools"
GROUPS: Final = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
Fetched = TypeVar("Fetched")
Tool = Callable[..., str]
"""Function that runs a Java program with arguments and returns its output."""


def java_clients() -> Iterator[Client]:
    """Yield the tools of both versions, whose jars are downloaded when their steps begin."""
    newest: dict[str, Callable[[Tool, Target], Iterator[str]]] = {
        "BrokerApiVersionsCommand": _versions,
        "ConsoleProducer and ConsoleConsumer": _console,
        "VerifiableProducer and VerifiableConsumer": _verifiable,
        "ConsumerGroupCommand": _groups,
        "TopicCommand and ConfigCommand": _topics,
        "DeleteRecordsCommand and GetOffsetShell": _offsets,
        "TransactionsCommand": _transactions,
    }
    for name, tool_steps in newest.items():
        yield Client(f"Java: {name}", KAFKA_VERSION, _with_jars(newest_jars, tool_steps))
    yield Client(
        "Java: VerifiableProducer and VerifiableConsumer",
        OLDEST,
        _with_jars(_oldest_jars, partial(_verifiable, oldest=True)),
    )


def newest_jars() -> str:
    """Return the class path of Kafka's newest tools, after downloading missing jars."""
    return f"{BENCHMARKS / 'peers/kafka'}:{fetched(lambda: fetch_kafka(cache()))}/*"


def _oldest_jars() -> str:
    definition = Path(__file__).parent / "java/kafka-2.1.xml"
    return f"{fetched(lambda: fetch_jars(definition, cache() / f'kafka-{OLDEST}'))}/*"


def require(*programs: str) -> None:
    """Raise `ClientMissing` if a program is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            message = f"{program} is not installed"
            raise ClientMissing(message)


def fetched(fetch: Callable[[], Fetched]) -> Fetched:
    """Return what Maven downloads; raise `ClientMissing` if the download fails."""
    try:
        return fetch()
    except subprocess.CalledProcessError as error:
        message = f"Maven did not provide the jars: exit code {error.returncode}"
        raise ClientMissing(message) from error


def _with_jars(jars: Callable[[], str], tool_steps: Callable[[Tool, Target], Iterator[str]]) -> Steps:
    """Return steps whose tools run with the jars on the class path."""

    def steps(target: Target) -> Iterator[str]:
        require("java", "mvn")
        environment = {"CLASSPATH": jars()}

        def tool(main_class: str, *arguments: str, text: str = "") -> str:
            command = [
                "java",
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                main_class,
                *arguments,
            ]
            done = finished(command, text=text, environment=environment)
            check(done)
            return done.stdout

        yield from tool_steps(tool, target)

    return steps


def _versions(tool: Tool, target: Target) -> Iterator[str]:
    found = tool(f"{TOOLS}.BrokerApiVersionsCommand", "--bootstrap-server", target.bootstrap)
    brokers = re.findall(r"\(id: (\d+) rack:", found)
    if len(brokers) != target.bootstrap.count(",") + 1 or "Produce(0): 3 to 13" not in found:
        raise ClientFailed(found[-300:])
    yield "list the APIs and versions of every broker"


def _console(tool: Tool, target: Target) -> Iterator[str]:
    place = ("--bootstrap-server", target.bootstrap, "--topic", target.topic)
    lines = {f"key-{number}:value of {number}" for number in range(target.count)}
    options = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tool(f"{TOOLS}.ConsoleProducer", *place, *options, text="\n".join(sorted(lines)) + "\n")
    yield "ConsoleProducer: idempotent produce with keys"
    for protocol in ("classic", "consumer"):
        found = tool(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *place,
            *("--from-beginning", "--max-messages", str(target.count), "--timeout-ms", "60000"),
            *("--group", f"{target.group}-{protocol}", "--command-property", f"group.protocol={protocol}"),
            *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"),
        )
        if sorted(found.splitlines()) != sorted(lines):
            message = f"{len(found.splitlines())} of {len(lines)} lines with group.protocol={protocol}"
            raise ClientFailed(message)
        yield f"ConsoleConsumer: member of a group with group.protocol={protocol}"


def _verifiable(tool: Tool, target: Target, *, oldest: bool = False) -> Iterator[str]:
    address = ("--broker-list" if oldest else "--bootstrap-server", target.bootstrap, "--topic", target.topic)
    count = ("--max-messages", str(target.count))
    produced = _events(tool(f"{TOOLS}.VerifiableProducer", *address, *count, "--acks", "-1"))
    acknowledged = {
        (each["partition"], each["offset"]): each["value"] for each in produced["producer_send_success"]
    }
    if len(acknowledged) != target.count:
        message = f"{len(acknowledged)} of {target.count} records were acknowledged"
        raise ClientFailed(message)
    yield "VerifiableProducer: acks=all, each record acknowledged once"
    for protocol in ("classic",) if oldest else ("classic", "consumer"):
        options = () if oldest else ("--group-protocol", protocol)
        group = ("--group-id", f"{target.group}-{protocol}", "--reset-policy", "earliest", "--verbose")
        events = _events(tool(f"{TOOLS}.VerifiableConsumer", *address, *count, *group, *options))
        read = {(each["partition"], each["offset"]): each["value"] for each in events["record_data"]}
        if read != acknowledged or any(not each["success"] for each in events["offsets_committed"]):
            message = f"{len(read)} of {len(acknowledged)} records, or a commit failed"
            raise ClientFailed(message)
        yield f"VerifiableConsumer: reads and commits what was acknowledged, with group.protocol={protocol}"


def _events(output: str) -> dict[str, list[dict[str, object]]]:
    """Return the events that a verifiable program printed, by their name."""
    events = defaultdict[str, list[dict[str, object]]](list)
    for line in output.splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            events[event["name"]].append(event)
    return events


def _groups(tool: Tool, target: Target) -> Iterator[str]:
    server = ("--bootstrap-server", target.bootstrap)
    place = (*server, "--topic", target.topic)
    lines = [f"value of {number}" for number in range(target.count)]
    tool(f"{TOOLS}.ConsoleProducer", *place, text="\n".join(lines) + "\n")
    consumer = ("--from-beginning", "--max-messages", str(target.count), "--timeout-ms", "60000")
    tool(f"{TOOLS}.consumer.ConsoleConsumer", *place, *consumer, "--group", target.group)
    if target.group not in tool(GROUPS, *server, "--list").split():
        message = f"{target.group} is not in the list"
        raise ClientFailed(message)
    yield "--list"
    if _lag(tool(GROUPS, *server, "--describe", "--group", target.group), target) != 0:
        message = "the lag is not 0"
        raise ClientFailed(message)
    yield "--describe: offsets and lag"
    reset = ("--reset-offsets", "--group", target.group, "--topic", target.topic, "--execute")
    tool(GROUPS, *server, *reset, "--to-earliest")
    if _lag(tool(GROUPS, *server, "--describe", "--group", target.group), target) != target.count:
        message = f"the lag is not {target.count}"
        raise ClientFailed(message)
    yield "--reset-offsets --to-earliest"
    tool(GROUPS, *server, "--delete", "--group", target.group)
    if target.group in tool(GROUPS, *server, "--list").split():
        message = f"{target.group} was not deleted"
        raise ClientFailed(message)
    yield "--delete"


def _lag(description: str, target: Target) -> int:
    """Return the sum of the lags that a description of the group lists for the topic."""
    rows = [line.split() for line in description.splitlines()]
    return sum(int(row[5]) for row in rows if row[:2] == [target.group, target.topic])


def _topics(tool: Tool, target: Target) -> Iterator[str]:
    server, name = ("--bootstrap-server", target.bootstrap), f"{target.topic}-made"
    place = (*server, "--topic", name)
    config = ("--config", "cleanup.policy=compact")
    tool(
        f"{TOOLS}.TopicCommand", *place, "--create", "--partitions", "2", "--replication-factor", "3", *config
    )
    found = tool(f"{TOOLS}.TopicCommand", *place, "--describe")
    _expect("PartitionCount: 2" in found and "cleanup.policy=compact" in found, found)
    yield "TopicCommand --create and --describe, with a configuration"
    tool(f"{TOOLS}.TopicCommand", *place, "--alter", "--partitions", "3")
    _expect("PartitionCount: 3" in tool(f"{TOOLS}.TopicCommand", *place, "--describe"), "no third partition")
    yield "TopicCommand --alter --partitions"
    entity = (*server, "--entity-type", "topics", "--entity-name", name)
    tool("kafka.admin.ConfigCommand", *entity, "--alter", "--add-config", "retention.ms=3600000")
    found = tool("kafka.admin.ConfigCommand", *entity, "--describe")
    _expect("retention.ms=3600000" in found, found)
    yield "ConfigCommand --alter and --describe for a topic"
    broker = (*server, "--entity-type", "brokers", "--entity-name", "0")
    found = tool("kafka.admin.ConfigCommand", *broker, "--describe", "--all")
    _expect("segment.bytes=" in found, found)
    yield "ConfigCommand --describe --all for a broker"
    tool(f"{TOOLS}.TopicCommand", *place, "--delete")
    _expect(name not in tool(f"{TOOLS}.TopicCommand", *server, "--list").split(), f"{name} was not deleted")
    yield "TopicCommand --delete and --list"


def _offsets(tool: Tool, target: Target) -> Iterator[str]:
    server = ("--bootstrap-server", target.bootstrap)
    place = (*server, "--topic", target.topic)
    tool(f"{TOOLS}.ConsoleProducer", *place, text="value\n" * target.count)
    _expect(
        _sum_of_offsets(tool, *place, "--time", "latest") == target.count, "the ends of the partitions differ"
    )
    yield "GetOffsetShell --time latest"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        partitions = [{"topic": target.topic, "partition": number, "offset": -1} for number in range(4)]
        json.dump({"partitions": partitions, "version": 1}, file)
        file.flush()
        tool(f"{TOOLS}.DeleteRecordsCommand", *server, "--offset-json-file", file.name)
    _expect(_sum_of_offsets(tool, *place, "--time", "earliest") == target.count, "records were not deleted")
    yield "DeleteRecordsCommand up to the ends of the partitions"


def _transactions(tool: Tool, target: Target) -> Iterator[str]:
    command, server = f"{TOOLS}.TransactionsCommand", ("--bootstrap-server", target.bootstrap)
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": target.group})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(target.topic, b"never committed", partition=0)
    producer.flush(SECONDS_MAX)
    listed = tool(command, *server, "list")
    _expect(
        bool(re.search(rf"{target.group}\s.*Ongoing", listed)), f"the transaction is not listed: {listed}"
    )
    described = tool(command, *server, "describe", "--transactional-id", target.group)
    _expect(f"{target.topic}-0" in described, f"the partition is not described: {described}")
    yield "list and describe an open transaction"
    tool(command, *server, "abort", "--topic", target.topic, "--partition", "0", "--start-offset", "0")
    try:
        producer.commit_transaction(SECONDS_MAX)
    except KafkaException:
        yield "abort an open transaction, which its producer can no longer commit"
    else:
        message = "the aborted transaction was committed"
        raise ClientFailed(message)


def _sum_of_offsets(tool: Tool, *arguments: str) -> int:
    lines = tool(f"{TOOLS}.GetOffsetShell", *arguments).splitlines()
    return sum(int(line.rpartition(":")[2]) for line in lines if line.count(":") == 2)


def _expect(met: bool, message: str) -> None:
    """Raise `ClientFailed` with a message unless a condition is met."""
    if not met:
        raise ClientFailed(message[-300:])
