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
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

sys.path.extend(
    str(Path(__file__).parents[1] / folder) for folder in ("plugins", "plugins/programs", "faults")
)

import uvloop

from broker_process import BrokerProcess
from fairlead_api.batch.batches import decode_records, encode, record_batch
from fairlead_api.batch.header import iterate_headers
from request_mutations import BATCHES, CONTROL, JSON, TOPIC, Request
from wire_connections import Answer, Attacker, BadAnswerError, Counts, read_answer
from wire_inputs import message

MEMORY_BYTES_MAX: Final = 600 << 20
"""Limit on the resident memory: the sum of this broker's budgets, its request heads and connections, and the program
itself."""
LIMITS: Final = {
    "FAIRLEAD_LIMITS__BODIES_BYTES_MAX": str(64 << 20),
    "FAIRLEAD_LIMITS__PRODUCE_BYTES_MAX": str(64 << 20),
    "FAIRLEAD_LIMITS__ANSWERS_BYTES_MAX": str(64 << 20),
    "FAIRLEAD_LIMITS__FETCH_WAIT_SECONDS_MAX": "0.001",
    "FAIRLEAD_LIMITS__PRODUCE_TIMEOUT_SECONDS_MAX": "1",
    "FAIRLEAD_CONFIG_VALUES": json.dumps({"retention.bytes": 1 << 26}),
}
WORKERS: Final = {"requests": 64, "streams": 24, "chunks": 24, "heads": 8, "frames": 8}
"""Number of connections for each kind of input, enough to keep two cores busy while some inputs wait for the store."""
MEMORY_FOLDER: Final = Path("/dev/shm")
"""Folder in memory for the files of the broker, if it exists: inputs then need not wait for a disk."""
WATCH_SECONDS: Final = 1.0
DAY_SECONDS: Final = 86_400.0
"""Time limit of a run without `--seconds`."""
PROGRESS_SECONDS: Final = 60.0
TOPICS_MAX: Final = 100
"""Topics that mutated requests may have created before they are deleted, because each needs memory by design."""


class Run:
    """One broker under attack."""

    def __init__(
        self, folder: Path, inputs: int, seconds: float | None, seed: int, *, stranger: bool
    ) -> None:
        self.counts = Counts()
        self.failures: list[str] = []
        self.memory_bytes = [0, 0]
        """Resident memory after the first second, and its maximum."""
        self.token = folder / "admin.token"
        environment = dict(LIMITS)
        if stranger:
            environment |= {"FAIRLEAD_SECURITY": "enforce", "FAIRLEAD_ADMIN_TOKEN_FILE": str(self.token)}
        self.broker = BrokerProcess(folder / "data", environment)
        self._inputs, self._seed, self._stranger = inputs, seed, stranger
        self.begun = time.monotonic()
        self._seconds = seconds or DAY_SECONDS
        self._address = ("", 0)
        self._records = 0
        self._unsure: set[bytes | None] = set()
        """Records without an acknowledgement."""

    def over(self) -> bool:
        """Return whether no further input is sent."""
        all_kinds = len(self.counts.inputs) == len(WORKERS)
        return (
            (all_kinds and self.counts.inputs.total() >= self._inputs)
            or time.monotonic() - self.begun >= self._seconds
            or bool(self.failures)
        )

    async def attack(self) -> None:
        """Send all inputs while valid records are stored."""
        self.begun = time.monotonic()
        address = urlsplit(self.broker.url)
        self._address = (address.hostname or "", address.port or 0)
        ids = []
        for name, durability in ((TOPIC, "replicated"), (CONTROL, "synced")):
            body = json.dumps({"name": name, "config": {"durability": durability}}).encode()
            answer = await self.call(Request("POST", "/v1/topics", (), JSON, None, body))
            assert answer.status == 201, answer
            ids.append(json.loads(answer.body)["topic_id"])
        tasks = [self._guarded(self._watch(), "watch")]
        for kind, workers in WORKERS.items():
            for number in range(workers):
                seed = f"{self._seed}.{kind}.{number}"
                attacker = Attacker(
                    self._address, self.counts, seed, ids[0], self.over, stranger=self._stranger
                )
                tasks.append(self._guarded(getattr(attacker, kind)(), seed))
        await asyncio.gather(*tasks)

    async def _guarded(self, work: Awaitable[None], seed: str) -> None:
        try:
            await work
        except (BadAnswerError, TimeoutError, OSError, ValueError, AssertionError) as error:
            self.failures.append(f"{seed}: {error!r}")

    async def _watch(self) -> None:
        """Measure the memory of the broker each second, and store a valid record; read all records at the end."""
        stored: list[bytes] = []
        progress = self.begun + PROGRESS_SECONDS
        while not self.over():
            self._measure()
            await self._store(stored)
            await self._delete_topics()
            if time.monotonic() >= progress:
                progress += PROGRESS_SECONDS
                self._print_progress()
            await asyncio.sleep(WATCH_SECONDS)  # noqa: TID251 - the interval of the measurements
        if self.broker.running and not self.failures:
            await self._store(stored)
            found = [value for value in await self._stored() if value not in self._unsure]
            assert found == stored, "records of the control topic were lost or changed"

    def _measure(self) -> None:
        pages = int(Path(f"/proc/{self.broker.pid}/statm").read_text().split()[1])
        used = pages * os.sysconf("SC_PAGE_SIZE")
        first, most = self.memory_bytes
        self.memory_bytes = [first or used, max(most, used)]
        if used > MEMORY_BYTES_MAX:
            self.failures.append(f"the broker uses {used:,} bytes of memory")

    async def _store(self, stored: list[bytes]) -> None:
        self._records += 1
        value = b"%d" % self._records
        batch = encode(record_batch([value], default_timestamp_us=1_700_000_000_000_000)).to_bytes()
        answer = await self.call(
            Request("POST", f"/v1/topics/{CONTROL}/partitions/0/records", (), BATCHES, None, batch)
        )
        if answer.status in (429, 503, 504):
            # The broker is overloaded. After a timeout, the record may be stored.
            self._unsure.add(value)
            return
        assert answer.status == 200, f"a good record is refused: {answer}"
        stored.append(value)

    async def _stored(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        while True:
            query = (("offset", str(len(found))), ("max_bytes", "1048576"), ("max_wait_ms", "0"))
            at = f"/v1/topics/{CONTROL}/partitions/0/records"
            answer = await self.call(Request("GET", at, query, None, BATCHES))
            before = len(found)
            for place, header in iterate_headers(answer.body):
                batch = decode_records(answer.body[place : place + header.total_bytes])
                found += [record.value for record in batch if record.offset >= before]
            if len(found) == before:
                return found

    async def _delete_topics(self) -> None:
        """Delete the topics that mutated requests created."""
        answer = await self.call(Request("GET", "/v1/topics", (("limit", "1000"),)))
        names = [each["name"] for each in json.loads(answer.body).get("items", ())]
        others = [name for name in names if name not in (TOPIC, CONTROL)]
        for name in others if len(others) > TOPICS_MAX else ():
            await self.call(Request("DELETE", f"/v1/topics/{name}"))

    async def call(self, request: Request) -> Answer:
        """Send a valid request as the administrator."""
        token = (
            (("authorization", f"Bearer {self.token.read_text().strip()}"),) if self.token.exists() else ()
        )
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(message(request, ("connection", "close"), *token))
            answer = await read_answer(reader, request.method)
        finally:
            writer.transport.abort()
        assert answer is not None, f"no answer to the good request {request}"
        return answer

    def _print_progress(self) -> None:
        done, seconds = self.counts.inputs.total(), time.monotonic() - self.begun
        sys.stderr.write(
            f"{done:,} of {self._inputs:,} inputs after {seconds:.0f} s, {done / seconds:.0f} a second, "
            f"{self.memory_bytes[1] >> 20} MiB\n"
        )
        sys.stderr.flush()

    def report(self, *, exits: int) -> dict[str, Any]:
        """Return the report of a run."""
        inputs = self.counts.inputs.total()
        return {
            "seed": self._seed,
            "stranger": self._stranger,
            "inputs_wanted": self._inputs,
            "inputs": inputs,
            "inputs_a_second": round(inputs / (time.monotonic() - self.begun)),
            "inputs_by_kind": dict(sorted(self.counts.inputs.items())),
            "without_an_answer": dict(sorted(self.counts.closed.items())),
            "answers_by_status": {
                str(status): number for status, number in sorted(self.counts.statuses.items())
            },
            "broker_exits": exits,
            "memory_bytes_first": self.memory_bytes[0],
            "memory_bytes_most": self.memory_bytes[1],
            "memory_bytes_bound": MEMORY_BYTES_MAX,
            "failures": self.failures,
        }


def run(inputs: int, seconds: float | None, seed: int, *, stranger: bool) -> dict[str, Any]:
    """Send the inputs and return the report. After a failure, the files of the broker are kept."""
    place = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-wire-", dir=place))
    found = Run(folder, inputs, seconds, seed, stranger=stranger)
    found.broker.start()
    try:
        uvloop.run(found.attack())
        exits = int(not found.broker.running)
    finally:
        found.broker.kill()
    report = found.report(exits=exits)
    if exits or found.failures:
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
