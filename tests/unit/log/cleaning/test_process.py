"""The program of the cleaner's child process: its answers, threads and limits."""

from __future__ import annotations

import ctypes
import io
import os
import platform
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cleaning_kit import KeyedBatches, order_for, roll
from fairlead_api.configuration import TopicConfig
from fairlead_broker.log.cleaning import process
from fairlead_broker.log.cleaning.process import (
    GO,
    HURRY,
    PART_BYTES,
    CleanerEvent,
    CleaningStorage,
    RoundFailed,
)
from fairlead_broker.log.cleaning.rounds import CleaningOrder, GroupCleaned, Mapped, RoundDone, clean
from fairlead_broker.log.segments.storage import PosixFile, PosixStorage
from fairlead_broker.runtime.hosting.cleaning_child import ENVIRONMENT, PROGRAM
from fairlead_broker.settings import Limits
from log_kit import FIRST_TIME_US, LogBox, begin

CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=1 << 20)


@pytest.fixture
def order(tmp_path: Path) -> Iterator[CleaningOrder]:
    """Yield the order for a round over one segment."""
    box = LogBox(tmp_path / "data", config=CONFIG)
    log = box.open()
    begin(log)
    for number in range(4):
        KeyedBatches(log).append([(b"k", b"%d" % number)])
    roll(log)
    yield order_for(log, FIRST_TIME_US, buffer_bytes=Limits().cleaner_buffer_bytes)[0]
    box.stop()


@dataclass
class CarriedOut:
    """A round that the program has carried out."""

    events: list[CleanerEvent]
    memory_bytes_max: int
    """Memory limit."""
    used_bytes: int
    """Peak memory of the process, including the code of its libraries."""
    niceness: int
    policy: int
    """Policy of the scheduler."""
    slice_ns: int
    """Time slice, or 0 on a system without configurable slices."""


def carried_out(order: CleaningOrder) -> CarriedOut:
    """Let the program carry out a round, as a broker does that was started with another policy of the scheduler."""
    child = subprocess.Popen(
        [sys.executable, "-m", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | ENVIRONMENT,
        preexec_fn=lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),  # noqa: PLW1509 - no lock is taken
    )
    events: list[CleanerEvent] = []
    limit = used = niceness = policy = slice_ns = 0
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        answer = msgspec.json.encode(order)
        while not events or not isinstance(events[-1], RoundDone | RoundFailed):
            child.stdin.write(answer + b"\n")
            child.stdin.flush()
            events += events_of(child.stdout.readline())
            answer = GO
            limit, _ = resource.prlimit(child.pid, resource.RLIMIT_DATA)
            niceness = os.getpriority(os.PRIO_PROCESS, child.pid)
            policy = os.sched_getscheduler(child.pid)
            slice_ns = _slice_ns(child.pid)
            used = _peak_bytes(child.pid)
        child.stdin.close()
    return CarriedOut(events, limit, used, niceness, policy, slice_ns)


def _slice_ns(pid: int) -> int:
    """Return the time slice of a process, or 0 on a system without configurable slices."""
    number = {"x86_64": 315, "aarch64": 275}.get(platform.machine(), -1)
    attributes = ctypes.create_string_buffer(48)
    ctypes.CDLL(None).syscall(number, pid, attributes, len(attributes), 0)
    return int(struct.unpack_from("Q", attributes, 24)[0])


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def events_of(content: bytes) -> list[CleanerEvent]:
    """Return the events that the program has written."""
    return [msgspec.json.decode(line, type=CleanerEvent) for line in content.splitlines()]


def test_a_round_has_the_lowest_priority_unless_it_has_to_hurry(
    order: CleaningOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `go` a step has the lowest priority, after `hurry` that of the process; any other answer ends the program.

    All syncs have the priority of the process.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    steps: list[int] = []

    def noted(*arguments: Any) -> Iterator[Any]:
        """Carry out the round, and note the niceness of each step."""
        for event in clean(*arguments):
            steps.append(os.getpriority(os.PRIO_PROCESS, 0))
            yield event

    def synced(self: PosixFile) -> None:
        """Sync the file, and note the niceness."""
        syncs.append(os.getpriority(os.PRIO_PROCESS, 0))
        sync(self)

    syncs, sync = list[int](), PosixFile.sync
    monkeypatch.setattr(PosixFile, "sync", synced)
    monkeypatch.setattr(process, "clean", noted)
    done, ended = io.BytesIO(), io.BytesIO()
    process.carry_out(order, io.BytesIO(b"\n".join((GO, HURRY, HURRY, GO))), done)
    process.carry_out(order, io.BytesIO(b"stop\n"), ended)

    kinds = [type(event) for event in events_of(done.getvalue())]
    assert kinds[-1] is RoundDone
    assert {Mapped, GroupCleaned} < set(kinds)
    assert steps[:4] == [process.LEAST_NICENESS, process.LEAST_NICENESS, own, own]
    assert set(syncs) == {own}
    assert [type(event) for event in events_of(ended.getvalue())] == kinds[:1]


def test_the_memory_and_the_priority_of_the_child_are_limited(order: CleaningOrder) -> None:
    """With the default buffer, the child has a limit of 512 MiB of memory. Any broker interrupts the child at once."""
    found = carried_out(order)

    assert found.memory_bytes_max == 512 << 20
    assert found.niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + process.NICENESS)
    assert found.policy == os.SCHED_OTHER
    assert found.slice_ns in (0, process.SLICE_NS)
    assert isinstance(found.events[-1], RoundDone)


def test_a_program_gets_its_slice_before_it_has_loaded_its_libraries() -> None:
    """The broker sets the slice of a program that it has just started."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
        process.set_slice(program.pid)
        slice_ns = _slice_ns(program.pid)

    assert slice_ns in (0, process.SLICE_NS)


def test_a_round_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    """Pages that a round has read from the disk are dropped again, and pages that were in memory stay there."""
    content, path = os.urandom(3 * PART_BYTES + 100), tmp_path / "file"
    changes = ThreadPoolExecutor(1)
    file = CleaningStorage(changes).open(path, create=True)
    file.write([content[:10], content[10:-7], content[-7:]], 0)
    file.sync()
    drop_pages(path)
    if cached_bytes(path):
        pytest.skip("the file system of the temporary folder does not drop pages")
    drop_pages(path)
    read, cached = bytearray(len(content)), []
    for _ in range(2):
        count = file.read_into(memoryview(read), 0)
        cached.append(cached_bytes(path))
        assert read[:count] == content
        path.read_bytes()
    changes.shutdown()

    assert cached == [0, len(content)]


def drop_pages(path: Path) -> None:
    """Drop the pages of a file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(path: Path) -> int:
    """Return the number of bytes in memory before the first byte of a file that is not in memory."""
    return PosixStorage().open(path).read_into_cached(memoryview(bytearray(path.stat().st_size)), 0)


@pytest.mark.scenario
def test_a_full_map_fits_into_the_memory_of_the_child(tmp_path: Path) -> None:
    """A round over more keys than fit into the default buffer stays within the limit, and cleans a part of the log."""
    box = LogBox(tmp_path / "data", config=TopicConfig(cleanup_policy="compact"))
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    for number in range(0, 6_200_000, 10_000):
        batches.append([(b"%030d" % key, b"x" * 40) for key in range(number, number + 10_000)])
    roll(log)
    found = carried_out(order_for(log, FIRST_TIME_US, buffer_bytes=Limits().cleaner_buffer_bytes)[0])
    box.stop()

    [mapped] = [event for event in found.events if isinstance(event, Mapped)]
    assert mapped.used_ratio > 0.97
    assert 5_900_000 < mapped.until < log.end_offset
    assert isinstance(found.events[-1], RoundDone)
    assert found.used_bytes < found.memory_bytes_max
