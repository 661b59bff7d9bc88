"""A user interface for Kafka in a terminal: kaskade, whose screens are read while it shows a topic and its records.

kaskade is installed in the user's cache, apart from the packages of this checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from client_programs import cache
from client_steps import Client, ClientFailed, ClientMissing, Target, check, finished
from confluent_kafka import Consumer, Producer, TopicPartition

from tmux_terminal import TmuxTerminal, tmux_terminals
from waiting import pause_blocking

VERSION: Final = "5.1.0"
SECONDS_MAX: Final = 60.0


def screen_clients() -> Iterator[Client]:
    """Yield the user interface, which is installed when its steps begin."""
    yield Client("kaskade, a user interface", VERSION, _kaskade)


def _kaskade(target: Target) -> Iterator[str]:
    program = _installed()
    _produce_and_commit(target)
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8"}
        with tmux_terminals(Path(folder), environment, "admin", "consumer") as (admin, consumer):
            admin.begin(f"{program} admin -b {target.bootstrap}")
            # Partitions, replicas, in-sync replicas, groups, members, records and lag.
            _wait_for_row(admin, rf"{target.topic} +4 +3 +3 +1 +0 +≈?{target.count} +≈?0\b")
            yield "list topics with replicas, groups, records and lag"
            consumer.begin(
                f"{program} consumer -b {target.bootstrap} -t {target.topic} --earliest -k string -v string"
            )
            consumer.wait_for("value-of-record-", SECONDS_MAX)
            yield "show records"


def _wait_for_row(terminal: TmuxTerminal, row: str) -> None:
    """Wait until the row of the topic is complete, which the interface shows column by column."""
    deadline = time.monotonic() + SECONDS_MAX
    while not re.search(row, screen := terminal.screen()):
        if time.monotonic() > deadline:
            message = f"the row of the topic is different: {screen}"
            raise ClientFailed(message)
        pause_blocking(0.2)


def _produce_and_commit(target: Target) -> None:
    """Produce records, and commit the end of each partition for the group."""
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(target.count):
        producer.produce(target.topic, f"value-of-record-{number}".encode(), f"key-{number}".encode())
    assert producer.flush(SECONDS_MAX) == 0, "records were not acknowledged"
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": target.group})
    try:
        found = consumer.list_topics(target.topic, SECONDS_MAX).topics[target.topic].partitions
        ends = {each: consumer.get_watermark_offsets(TopicPartition(target.topic, each))[1] for each in found}
        offsets = [TopicPartition(target.topic, each, end) for each, end in ends.items()]
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()


def _installed() -> Path:
    if shutil.which("tmux") is None:
        message = "tmux is not installed"
        raise ClientMissing(message)
    folder = cache() / f"kaskade-{VERSION}"
    program = folder / "bin/kaskade"
    if not program.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True
        )
        python = str(folder / "bin/python")
        check(finished([uv, "pip", "install", "--quiet", "--python", python, f"kaskade=={VERSION}"]))
    return program
