"""A broker in a separate process, which can be stopped, killed and started again on the same data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from waiting import pause_blocking
from warm_programs import FAIRLEAD, WarmProcess, start

BYTECODE: Final = Path(__file__).parents[2] / "build" / "bytecode"
"""Folder of bytecode that is kept between runs, because compiling all modules takes most of a first start."""


@dataclass(slots=True)
class BrokerProcess:
    """Successive processes of one `fairlead broker start`."""

    data: Path
    environment: dict[str, str] = field(default_factory=dict)
    """Settings, as `FAIRLEAD_...` variables."""
    errors: Path | None = None
    """Folder of the logs, by default next to the data."""
    arguments: tuple[str, ...] = ()
    """Additional flags of the command."""
    prefix: tuple[str, ...] = ()
    """Program that starts the broker, with its arguments, such as `prlimit --nofile=256`."""
    listeners: tuple[str, str, str] = ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0")
    """Addresses of the listeners for clients, brokers and operators."""
    url: str = ""
    """Address of the data listener, which changes with every start if the operating system chooses the port."""
    ops: str = ""
    kafka: str = ""
    """Address of the Kafka listener; empty without this listener."""
    start_seconds: float = 0.0
    """Seconds from the call of the last start to its ready line, without the imports of the interpreter."""
    _process: subprocess.Popen[bytes] | WarmProcess | None = None
    _log: IO[bytes] | None = None

    def start(self, timeout_seconds: float = 60) -> None:
        """Start a process and return when the broker serves; otherwise raise `RuntimeError` with the end of its log."""
        errors = self.errors or self.data.with_name(self.data.name + ".log")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        # Bytecode is kept, as for an installed program; without bytecode, compiling all modules would be half of a
        # start.
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        kept["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
        command = ["broker", "start", "--output", "json"]
        for flag, address in zip(("--listen", "--peer-listen", "--ops-listen"), self.listeners, strict=True):
            command += [flag, address]
        command += [*self.arguments, "--data", str(self.data)]
        environment = {**kept, **self.environment}
        self._log = errors.open("ab")
        begun = time.monotonic()
        if self.prefix:
            self._process = subprocess.Popen(
                [*self.prefix, FAIRLEAD, *command], stdout=subprocess.PIPE, stderr=self._log, env=environment
            )
        else:
            self._process = start(*command, environment=environment, errors=self._log)
        line = self._ready_line(timeout_seconds)
        self.start_seconds = time.monotonic() - begun
        if not line:
            self.kill()
            message = f"the broker ended before it was ready: {errors.read_text()[-2000:]}"
            raise RuntimeError(message)
        ready = json.loads(line)["brokers"][0]
        self.url, self.ops, self.kafka = ready["data"], ready["ops"], ready.get("kafka", "")

    def _ready_line(self, timeout_seconds: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(timeout_seconds, self._process.kill)
        watchdog.start()
        try:
            return self._process.stdout.readline()
        finally:
            watchdog.cancel()

    @property
    def pid(self) -> int:
        """The process id of the current process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the current process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the current process with SIGKILL, and wait until the process has ended."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_seconds: float = 20) -> int:
        """Stop gracefully; return the exit code."""
        return self._end(signal.SIGTERM, timeout_seconds)

    def pause(self) -> None:
        """Pause the process with its connections open, and return when the process is paused."""
        os.kill(self.pid, signal.SIGSTOP)
        stopped = Path(f"/proc/{self.pid}/stat")
        while stopped.read_text().rpartition(")")[2].split()[0] != "T":
            pause_blocking(0.001)

    def resume(self) -> None:
        """Resume the process."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals, timeout_seconds: float = 20) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(timeout_seconds)
        if process.stdout is not None:
            process.stdout.close()
        if self._log is not None:
            self._log.close()
        self._process = None
        return code
