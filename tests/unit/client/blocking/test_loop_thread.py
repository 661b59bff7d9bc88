"""Blocking clients raise a typed error if their loop has ended, or runs in the parent of a forked process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from fairlead import blocking
from fairlead.blocking.loop_thread import LoopThread
from fairlead.errors import ClosedError

if TYPE_CHECKING:
    from conftest import ScriptedBroker

FORKING = """
import os, sys
from fairlead.blocking import Consumer, Producer
from fairlead.errors import FairleadError

nowhere = "http://127.0.0.1:1"
producer, consumer = Producer(nowhere).start(), Consumer(nowhere).start()
child = os.fork()
if child == 0:
    calls = [producer.flush, lambda: producer.send("flights", b"x"), consumer.end_offsets, Producer(nowhere).start]
    for call in calls:
        try:
            call()
        except FairleadError as error:
            print(type(error).__name__, str(error).rpartition(": ")[2], flush=True)
    producer.close()
    consumer.close()
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
producer.flush()
producer.close()
consumer.close()
"""


def test_a_call_that_the_end_cuts_off_says_so() -> None:
    """A call that is interrupted by the end of the loop raises ClosedError, not CancelledError."""
    thread, begun = LoopThread("fairlead consumer"), threading.Event()
    thread.start()

    async def wait() -> None:
        """Wait forever."""
        begun.set()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor(1) as others:
        call = others.submit(lambda: thread.run(wait()))
        assert begun.wait(20)
        thread.stop()
        with pytest.raises(ClosedError):
            call.result(20)


def test_calls_that_race_with_the_end_end() -> None:
    """Calls that race with the end of the loop return a result or raise ClosedError."""

    async def answer() -> int:
        """Wait for one iteration of the loop."""
        await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(int))])
        return 7

    def call(thread: LoopThread) -> int:
        """Make calls until the loop ends, and return the number of answered calls."""
        calls = 0
        try:
            while thread.run(answer(), timeout=20) == 7:
                calls += 1
        except ClosedError:
            return calls

    with ThreadPoolExecutor(3) as others:
        for _ in range(30):
            thread = LoopThread("fairlead consumer")
            thread.start()
            calls = [others.submit(call, thread) for _ in range(3)]
            thread.run(answer())
            thread.stop()
            assert all(each.result(20) >= 0 for each in calls)


def test_clients_of_the_parent_raise_in_a_fork() -> None:
    """In a forked process, the parent's clients raise a typed error, and continue to work in the parent."""
    run = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False
    )
    elsewhere = "ClosedError use it in the process that opened it, not in a fork of that process"
    spawned = "SettingError in a spawned process, or in a fork of a process that has not opened a client"

    assert run.stdout.splitlines() == [elsewhere] * 3 + [spawned, "0"], run.stderr
    assert run.returncode == 0


async def test_every_record_after_the_end_is_refused(broker: ScriptedBroker) -> None:
    """A closed producer refuses every record, and does not send the refused records after a restart."""

    def scenario() -> None:
        producer = blocking.Producer(broker.url)
        with producer:
            producer.send("flights", b"sent", partition=0)
        for _ in range(3):
            with pytest.raises(ClosedError):
                producer.send("flights", b"late", partition=0)
        with producer:
            producer.send("flights", b"again", partition=0).result(20)

    await asyncio.to_thread(scenario)

    assert broker.values(0) == [b"sent", b"again"]
