"""Growth of a kind of work in steps: figures of each step, limits of the broker, and the limit that is met first.

The parts of `scale.py` use this module. A step has the same figures in all parts, and further figures of its part. The
first limit is computed from the figures: each limit is continued in proportion from the first and the last step.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.brokers import HERE, PeerFailedError, PeerProcess, cpu_seconds

PROBE_RECORDS_PER_SECOND = 200
NOISE_SHARE = 0.01
"""Growth below this share of a limit is not told from noise, such as a tick of the processor clock."""
CORES, MEMORY, FILES = "cores of the broker", "memory, MiB", "open files"
WHY = {
    CORES: "The broker's Python runs on one core at a time, so more work needs more brokers, also on the same machine.",
    MEMORY: "Memory is used for each of them, even if it is idle.",
    FILES: "Each of them keeps files open; the limit is that of the process (`ulimit -n`).",
}
"""Reason of each limit that every part has."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure, or a name for the count of the steps, and the value at which no further work is possible."""

    figure: str
    most: float
    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """Figures at one count."""

    count: int
    figures: Mapping[str, float]

    def __post_init__(self) -> None:
        """Print the figures, because a part takes minutes."""
        print(f"{self.count:,}: {rounded(self.figures)}", file=sys.stderr, flush=True)


def machine_limits() -> tuple[Limit, ...]:
    """Return the limits of one broker process on this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Limit(CORES, 1.0, WHY[CORES]), Limit(MEMORY, memory, WHY[MEMORY]), Limit(FILES, files, WHY[FILES])


def measured(peer: PeerProcess, url: str, probe_topic: str, seconds: float) -> dict[str, float]:
    """Return the broker's figures, and the latency of another producer, which sends 200 records a second.

    The processor time is measured before the other producer starts.
    """
    before, at = cpu_seconds(peer.process.pid), time.monotonic()
    time.sleep(seconds)
    cores = (cpu_seconds(peer.process.pid) - before) / (time.monotonic() - at)
    probe = work(
        "workloads/latency_workload.py", "pace", url=url, topic=probe_topic, rate=PROBE_RECORDS_PER_SECOND,
        seconds=seconds,
    )  # fmt: skip
    return {
        CORES: cores,
        MEMORY: peer.resident_bytes() / 2**20,
        FILES: float(sum(1 for _ in Path(f"/proc/{peer.process.pid}/fd").iterdir())),
        "p50 of another producer, ms": probe["p50_ms"],
        "p99 of another producer, ms": probe["p99_ms"],
    }


def command_of(script: str, kind: str, **options: object) -> list[str]:
    """Return the command line of a workload."""
    command = [sys.executable, str(HERE / script), kind]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def work(script: str, kind: str, **options: object) -> dict[str, float]:
    """Run a workload to its end, and return the figures that it prints."""
    done = subprocess.run(command_of(script, kind, **options), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"{kind} ended with {done.returncode}: {done.stderr[-3000:]}"
        raise PeerFailedError(msg)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def growth(what: str, steps: Sequence[Step], limits: Sequence[Limit]) -> dict[str, object]:
    """Return the result of a part: its steps, and the limit that is met first."""
    return {
        "what": what,
        "steps": [{"count": step.count, "figures": rounded(step.figures)} for step in steps],
        "first_limit": _first_limit(steps, limits),
    }


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Return figures with four significant digits."""
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def _first_limit(steps: Sequence[Step], limits: Sequence[Limit]) -> dict[str, object] | None:
    """Return the limit that is met at the lowest count; None if no figure grows by a hundredth of its limit."""
    first, last = steps[0], steps[-1]
    met = []
    for limit in limits:
        used = last.figures.get(limit.figure, last.count)
        grown = used - first.figures.get(limit.figure, first.count)
        if grown >= NOISE_SHARE * limit.most:
            met.append((last.count + (limit.most - used) / grown * (last.count - first.count), limit))
    if not met:
        return None
    count, limit = min(met, key=lambda each: each[0])
    return {
        "figure": limit.figure,
        "most": limit.most,
        "used": last.figures.get(limit.figure, last.count),
        "count": round(float(f"{count:.2g}")),
        "why": limit.why,
    }
