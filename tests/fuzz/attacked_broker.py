"""A broker process under attack: its memory is measured, and valid records are stored while bad inputs arrive.

`wire_mutations.py` attacks the broker over HTTP, and `kafka_wire_mutations.py` over Kafka's protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from broker_process import BrokerProcess
from fairlead_api.batch.batches import decode_records, encode, record_batch
from fairlead_api.batch.header import iterate_headers
from request_mutations import BATCHES, CONTROL, JSON, TOPIC, Request
from wire_connections import Answer, BadAnswerError, read_answer
from wire_inputs import message

MEMORY_BYTES_MAX: Final = 600 << 20
"""Limit on the resident memory: the sum of this broker's budgets, its request heads and connections, and the program
itself."""
SETTINGS: Final = {
    "FAIRLEAD_LOG_LEVEL": "warning",
    "FAIRLEAD_LIMITS__BODIES_BYTES_MAX": str(64 << 20),
    "FAIRLEAD_LIMITS__PRODUCE_BYTES_MAX": str(64 << 20),
    "FAIRLEAD_LIMITS__ANSWERS_BYTES_MAX": str(64 << 20),
    "FAIRLEAD_LIMITS__FETCH_WAIT_SECONDS_MAX": "0.001",
    "FAIRLEAD_LIMITS__PRODUCE_TIMEOUT_SECONDS_MAX": "1",
    "FAIRLEAD_CONFIG_VALUES": json.dumps({"retention.bytes": 1 << 26}),
}
MEMORY_FOLDER: Final = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Folder in memory for the files of the broker, if it exists: inputs then need not wait for a disk."""
WATCH_SECONDS: Final = 1.0
PROGRESS_SECONDS: Final = 60.0
TOPICS_MAX: Final = 100
"""Topics that mutated requests may have created before they are deleted, because each needs memory by design."""


class AttackedBroker:
    """One broker process, and what was observed of it."""

    def __init__(self, folder: Path, *arguments: str, secured: bool = False) -> None:
        """`arguments`: further flags of the command. `secured`: whether the broker enforces access rules."""
        self.failures: list[str] = []
        self.memory_bytes = [0, 0]
        """Resident memory after the first second, and its maximum."""
        self.begun = time.monotonic()
        self._token = folder / "admin.token"
        environment = dict(SETTINGS)
        if secured:
            environment |= {"FAIRLEAD_SECURITY": "enforce", "FAIRLEAD_ADMIN_TOKEN_FILE": str(self._token)}
        self.process = BrokerProcess(folder / "data", environment, arguments=arguments)
        self._records = 0
        self._unsure: set[bytes | None] = set()
        """Records without an acknowledgement."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the data listener."""
        found = urlsplit(self.process.url)
        return found.hostname or "", found.port or 0

    async def create_topics(self) -> str:
        """Create the topic for mutated requests and the topic for valid records; return the id of the first."""
        self.begun = time.monotonic()
        ids = []
        for name, durability in ((TOPIC, "replicated"), (CONTROL, "synced")):
            body = json.dumps({"name": name, "config": {"durability": durability}}).encode()
            answer = await self._call(Request("POST", "/v1/topics", (), JSON, None, body))
            assert answer.status == 201, answer
            ids.append(str(json.loads(answer.body)["topic_id"]))
        return ids[0]

    async def guarded(self, work: Awaitable[None], name: str) -> None:
        """Run an attack, and record how it failed."""
        try:
            await work
        except (BadAnswerError, TimeoutError, OSError, ValueError, AssertionError) as error:
            self.failures.append(f"{name}: {error!r}")

    async def watch(self, over: Callable[[], bool], done: Callable[[], int]) -> None:
        """Measure the memory each second, and store a valid record, until `over`; then read all valid records.

        `done` returns the number of inputs, for the progress on stderr.
        """
        stored: list[bytes] = []
        progress = self.begun + PROGRESS_SECONDS
        while not over():
            self._measure()
            await self._store(stored)
            await self._delete_topics()
            if time.monotonic() >= progress:
                progress += PROGRESS_SECONDS
                self._print_progress(done())
            await asyncio.sleep(WATCH_SECONDS)  # noqa: TID251 - the interval of the measurements
        if self.process.running and not self.failures:
            await self._store(stored)
            found = [value for value in await self._stored() if value not in self._unsure]
            assert found == stored, "records of the control topic were lost or changed"

    def _measure(self) -> None:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        used = pages * os.sysconf("SC_PAGE_SIZE")
        first, most = self.memory_bytes
        self.memory_bytes = [first or used, max(most, used)]
        if used > MEMORY_BYTES_MAX:
            self.failures.append(f"the broker uses {used:,} bytes of memory")

    async def _store(self, stored: list[bytes]) -> None:
        self._records += 1
        value = b"%d" % self._records
        batch = encode(record_batch([value], default_timestamp_us=1_700_000_000_000_000)).to_bytes()
        answer = await self._call(
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
            answer = await self._call(Request("GET", at, query, None, BATCHES))
            before = len(found)
            for place, header in iterate_headers(answer.body):
                batch = decode_records(answer.body[place : place + header.total_bytes])
                found += [record.value for record in batch if record.offset >= before]
            if len(found) == before:
                return found

    async def _delete_topics(self) -> None:
        """Delete the topics that mutated requests created."""
        answer = await self._call(Request("GET", "/v1/topics", (("limit", "1000"),)))
        names = [each["name"] for each in json.loads(answer.body).get("items", ())]
        others = [name for name in names if name not in (TOPIC, CONTROL)]
        for name in others if len(others) > TOPICS_MAX else ():
            await self._call(Request("DELETE", f"/v1/topics/{name}"))

    async def _call(self, request: Request) -> Answer:
        """Send a valid request as the administrator."""
        token = (
            (("authorization", f"Bearer {self._token.read_text().strip()}"),) if self._token.exists() else ()
        )
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(message(request, ("connection", "close"), *token))
            answer = await read_answer(reader, request.method)
        finally:
            writer.transport.abort()
        assert answer is not None, f"no answer to the good request {request}"
        return answer

    def _print_progress(self, done: int) -> None:
        seconds = time.monotonic() - self.begun
        sys.stderr.write(
            f"{done:,} inputs after {seconds:.0f} s, {done / seconds:.0f} a second, "
            f"{self.memory_bytes[1] >> 20} MiB\n"
        )
        sys.stderr.flush()

    def report(self) -> dict[str, Any]:
        """Return what was observed of the broker."""
        return {
            "memory_bytes_first": self.memory_bytes[0],
            "memory_bytes_most": self.memory_bytes[1],
            "memory_bytes_bound": MEMORY_BYTES_MAX,
            "failures": self.failures,
        }
