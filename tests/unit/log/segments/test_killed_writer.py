"""A real process that writes to a log and is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead_api.configuration import Durability, TopicConfig
from log_kit import BatchMaker, LogBox, read_all, stored

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from log_kit import BatchMaker, LogBox
from fairlead_api.configuration import Durability, TopicConfig
box = LogBox(Path(sys.argv[2]))
log = box.open(TopicConfig(segment_bytes=30_000, index_interval_bytes=500, durability=Durability(sys.argv[3])))
highest = max((entry.epoch for entry in log.leader_epochs), default=0)
log.begin_epoch(highest + 1)
make = BatchMaker(highest + 1)
while True:
    group = []
    for number in range(5):
        group.append(make(log.end_offset + 2 * number, 2, 30))
    log.append(group)
    if log.end_offset % 40 == 0:
        log.sync()
    if log.end_offset % 200 == 0:
        box.opened.write_checkpoint()
    print(log.synced_offset, log.end_offset, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "durability", [Durability.SYNCED, pytest.param(Durability.REPLICATED, marks=pytest.mark.scenario)]
)
def test_nothing_written_is_lost_by_a_kill(tmp_path: Path, durability: Durability) -> None:
    """A log whose writer process is killed at any moment keeps all records that the writer reported."""
    kit = str(Path(sys.modules["log_kit"].__file__ or "").parent)
    make, box = BatchMaker(), LogBox(tmp_path / "data")
    end = 0
    for lines in (1, 90):
        arguments = [sys.executable, "-c", WRITER, kit, str(box.path), durability.value]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                said = writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read()
        synced, appended = map(int, ((rest.rpartition("\n")[0].splitlines() or [said])[-1]).split())
        log = box.open(TopicConfig(durability=durability))
        whole = [make(2 * number, 2, 30) for number in range(log.end_offset // 2)]

        assert appended > end
        assert log.end_offset >= appended >= synced
        assert log.damaged == ()
        assert without_epochs(read_all(log)) == without_epochs(stored(*whole))
        end = log.end_offset
        box.kill()


def without_epochs(data: bytes) -> bytes:
    """Return batches without leader epoch and stamp checksum, which differ between runs of the writer."""
    cleared, nbytes = bytearray(data), BatchMaker()(0, 2, 30).nbytes
    for at in range(0, len(cleared), nbytes):
        cleared[at + 12 : at + 16] = cleared[at + 28 : at + 32] = bytes(4)
    return bytes(cleared)
