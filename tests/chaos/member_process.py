"""A member of a group in a separate process, which can be killed without leaving the group.

The module is also the program of the member process. The member writes its events to a file, line by line. When the
member ends, its events are merged into the history by time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from group_clients import GROUP, GroupReader
from history_recorder import HistoryRecorder

NUMBERS_EACH: Final = 1_000_000
"""Range of process and request numbers of one member, distinct from those of other members."""
_LIVES: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Addresses:
    """Addresses of the brokers, the only part of the cluster that a reader needs."""

    urls: list[str]


class _WrittenHistory(HistoryRecorder):
    """Writes each event to the file immediately, so that a kill loses no event."""

    def __init__(self, path: Path, begun: float, first: int) -> None:
        super().__init__({})
        self._begun, self._requests, self._processes = begun, first, first
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, op: str, kind: str, **more: object) -> None:
        event = {"op": op, "type": kind, "time": self.now, **more}
        os.write(self._file, msgspec.json.encode(event) + b"\n")


@dataclass(slots=True)
class MemberProcess:
    """Successive processes of one member. `more`: settings of the member's consumer."""

    folder: Path
    urls: list[str]
    history: HistoryRecorder
    topic: str
    group: str = GROUP
    more: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _files: list[Path] = field(default_factory=list)

    def start(self) -> None:
        """Start a process."""
        first = next(_LIVES) * NUMBERS_EACH
        file = self.folder / f"member-{first}.jsonl"
        self._files.append(file)
        settings = {
            "urls": self.urls,
            "topic": self.topic,
            "group": self.group,
            "more": self.more,
            "file": str(file),
            "begun": time.monotonic() - self.history.now,
            "first": first,
        }
        # The member gets the module path of this process, so that it finds the same modules.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        with file.with_suffix(".log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(settings)], stdout=log, stderr=log, env=environment
            )

    @property
    def has_assigned(self) -> bool:
        """Whether the current process has been assigned partitions."""
        return b'"op":"assign"' in self._files[-1].read_bytes() if self._files[-1].exists() else False

    def pause(self) -> None:
        """Pause the process with its connections open, and return when the process is paused."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Resume the process."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    async def kill(self) -> None:
        """Kill the process."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the process gracefully, so that the member leaves the group."""
        code = await self._end(signal.SIGTERM)
        assert code == 0, self._files[-1].with_suffix(".log").read_text()[-2000:]

    async def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        return await asyncio.to_thread(process.wait, 60)

    def merge_events(self) -> None:
        """Merge the member's events into the history by time, while no other client writes to the history."""
        decoder = msgspec.json.Decoder(dict[str, Any])
        events = self.history.events
        for file in self._files:
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
            # A kill may have truncated the last line.
            events += [decoder.decode(line) for line in lines if line.endswith(b"\n")]
        self._files.clear()
        events[1:] = sorted(events[1:], key=lambda event: float(event["time"]))


async def _work(settings: dict[str, Any]) -> None:
    history = _WrittenHistory(Path(settings["file"]), settings["begun"], settings["first"])
    reader = GroupReader(
        _Addresses(settings["urls"]), history, settings["topic"], settings["group"], **settings["more"]
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reader.stopping.set)
    await reader.run()


if __name__ == "__main__":
    asyncio.run(_work(json.loads(sys.argv[1])))
