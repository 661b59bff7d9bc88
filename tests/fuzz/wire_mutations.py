"""Sends bad inputs to a broker process over HTTP/1.1 and HTTP/2, and checks that the broker stays up.

`python wire_mutations.py --inputs 10000000 --seed 1` starts `fairlead broker start` and sends bad inputs on many
connections: mutated batches, JSON and Arrow bodies, queries, paths and headers as whole requests, pipelined over
HTTP/1.1 and as HTTP/2 streams, and malformed chunks, heads, and HTTP/2 frames. Between the mutated requests, valid
records are stored, and they are read back at the end. With `--stranger`, the broker runs in `enforce` mode, and no
input has a token.

The program prints a JSON report, and its progress each minute. The program exits with 1 if the process of the broker
ended, an answer is neither a success nor a problem of the catalogue, an input without a token was served, a valid
record was refused or lost, or the process used more memory than the bound. `--seconds` ends the run early without
making the run a failure. The report contains the requested and the actual number of inputs. The files of a broker that
failed are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).parents[1] / folder) for folder in ("plugins", "plugins/programs", "faults")
)

import uvloop

from attacked_broker import MEMORY_FOLDER, AttackedBroker
from wire_connections import Attacker, Counts

WORKERS: Final = {"requests": 64, "streams": 24, "chunks": 24, "heads": 8, "frames": 8}
"""Number of connections for each kind of input, enough to keep two cores busy while some inputs wait for the store."""
DAY_SECONDS: Final = 86_400.0
"""Time limit of a run without `--seconds`."""


class Run:
    """One attack on a broker over HTTP."""

    def __init__(
        self, folder: Path, inputs: int, seconds: float | None, seed: int, *, stranger: bool
    ) -> None:
        self.counts = Counts()
        self.broker = AttackedBroker(folder, secured=stranger)
        self._inputs, self._seed, self._stranger = inputs, seed, stranger
        self._seconds = seconds or DAY_SECONDS

    def over(self) -> bool:
        """Return whether no further input is sent."""
        all_kinds = len(self.counts.inputs) == len(WORKERS)
        return (
            (all_kinds and self.counts.inputs.total() >= self._inputs)
            or time.monotonic() - self.broker.begun >= self._seconds
            or bool(self.broker.failures)
        )

    async def attack(self) -> None:
        """Send all inputs while valid records are stored."""
        topic_id = await self.broker.create_topics()
        tasks = [self.broker.guarded(self.broker.watch(self.over, self.counts.inputs.total), "watch")]
        for kind, workers in WORKERS.items():
            for number in range(workers):
                seed = f"{self._seed}.{kind}.{number}"
                attacker = Attacker(
                    self.broker.address, self.counts, seed, topic_id, self.over, stranger=self._stranger
                )
                tasks.append(self.broker.guarded(getattr(attacker, kind)(), seed))
        await asyncio.gather(*tasks)

    def report(self, *, exits: int) -> dict[str, Any]:
        """Return the report of a run."""
        inputs = self.counts.inputs.total()
        return {
            "seed": self._seed,
            "stranger": self._stranger,
            "inputs_wanted": self._inputs,
            "inputs": inputs,
            "inputs_a_second": round(inputs / (time.monotonic() - self.broker.begun)),
            "inputs_by_kind": dict(sorted(self.counts.inputs.items())),
            "without_an_answer": dict(sorted(self.counts.closed.items())),
            "answers_by_status": {
                str(status): number for status, number in sorted(self.counts.statuses.items())
            },
            "broker_exits": exits,
            **self.broker.report(),
        }


def run(inputs: int, seconds: float | None, seed: int, *, stranger: bool) -> dict[str, Any]:
    """Send the inputs and return the report. After a failure, the files of the broker are kept."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-wire-", dir=MEMORY_FOLDER))
    found = Run(folder, inputs, seconds, seed, stranger=stranger)
    found.broker.process.start()
    try:
        uvloop.run(found.attack())
        exits = int(not found.broker.process.running)
    finally:
        found.broker.process.kill()
    report = found.report(exits=exits)
    if exits or found.broker.failures:
        return {**report, "folder": str(folder)}
    shutil.rmtree(folder)
    return report


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, help="time after which no input is sent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stranger", action="store_true", help="attack a closed broker without a token")
    arguments = parser.parse_args()
    report = run(arguments.inputs, arguments.seconds, arguments.seed, stranger=arguments.stranger)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return int(
        bool(report["failures"] or report["broker_exits"])
        or (arguments.seconds is None and report["inputs"] < arguments.inputs)
    )


if __name__ == "__main__":
    sys.exit(main())
