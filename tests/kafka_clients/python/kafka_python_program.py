"""Runs kafka-python against brokers: two members of a group, and a producer with every codec that is installed.

Usage: kafka_python_program.py BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1
on an error. kafka-python includes gzip, and supports other codecs if their packages are installed.
"""

from __future__ import annotations

import sys
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.codec import has_lz4, has_snappy, has_zstd

SECONDS_MAX = 90.0


def main(bootstrap: str, topic: str, group: str, count: int) -> None:
    """Produce and consume `count` records for each codec."""
    servers = bootstrap.split(",")
    members = joined_members(servers, topic, group)
    wanted = set()
    installed = {"snappy": has_snappy(), "lz4": has_lz4(), "zstd": has_zstd()}
    codecs = ["none", "gzip", *(codec for codec, has in installed.items() if has)]
    for codec in codecs:
        producer = KafkaProducer(
            bootstrap_servers=servers, acks="all", compression_type=None if codec == "none" else codec
        )
        for number in range(count):
            key = f"{codec}-{number}"
            wanted.add(key)
            headers = [("codec", codec.encode())]
            producer.send(topic, key=key.encode(), value=f"value of {key}".encode(), headers=headers)
        producer.flush(SECONDS_MAX)
        producer.close()
    print(f"idempotent produce with {' and '.join(codecs)}")

    read_once(members, wanted)
    print("two members of a classic group, each record once")

    partitions = [TopicPartition(topic, number) for number in members[0].partitions_for_topic(topic)]
    ends = members[0].end_offsets(partitions)
    committed = {each: members[0].committed(each) or 0 for each in partitions}
    assert committed == ends, f"committed {committed}, ends {ends}"
    for member in members:
        member.close()
    print("committed offsets and end offsets")


def joined_members(servers: list[str], topic: str, group: str) -> list[KafkaConsumer]:
    """Return two members of a group that have partitions, so that no commit meets a rebalance."""
    members = [
        KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        for _ in range(2)
    ]
    deadline = time.monotonic() + SECONDS_MAX
    while not all(member.assignment() for member in members):
        assert time.monotonic() < deadline, "not every member has a partition"
        for member in members:
            assert not member.poll(200), "records before the first produce"
    return members


def read_once(members: list[KafkaConsumer], wanted: set[str]) -> None:
    """Read every record exactly once, and commit what was read."""
    found: dict[str, int] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < len(wanted):
        assert time.monotonic() < deadline, f"{len(found)} of {len(wanted)} records"
        for member in members:
            for messages in member.poll(200).values():
                for message in messages:
                    key = message.key.decode()
                    assert message.value == f"value of {key}".encode(), key
                    assert len(message.headers) == 1, key
                    found[key] = found.get(key, 0) + 1
            member.commit()
    assert set(found.values()) == {1}, "a record was read twice"


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
