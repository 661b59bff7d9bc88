"""Client process that carries out turns of producing and consuming, so that no turn includes the start of a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from peers.brokers import HERE, PeerFailedError
from throughput import PARTITIONS


class TurnsClient:
    """Running `turns_workload.py`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the process with additional environment variables."""
        self._process = subprocess.Popen(
            [sys.executable, HERE / "workloads/turns_workload.py"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        side: str,
        url: str,
        topic: str,
        records: int,
        value_bytes: int,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Run one turn, with environment variables of the SDK for this turn; return its figures.

        Raises `PeerFailedError`.
        """
        order = {"side": side, "url": url, "topic": topic, "partitions": PARTITIONS}
        order |= {"records": records, "value_bytes": value_bytes, "environment": dict(environment or {})}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            msg = f"the client ended with {self._process.wait()} during {side} through {url}"
            raise PeerFailedError(msg)
        figures: dict[str, float] = json.loads(line)
        return figures

    def stop(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
