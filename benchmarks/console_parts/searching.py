"""Time that the console takes to find one record by key in a topic with many records of 100 bytes.

The search runs the code of the console, and is compared with `fairlead consume` and `grep`. The broker runs in this
process, as in `fairlead.testing`.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
from pairing import Outcome

from fairlead import Admin, Producer
from fairlead.testing import running_cluster
from fairlead_console.records.filters import RecordFilter
from fairlead_console.records.found import found_page
from fairlead_console.records.scan import Scan, ScanLimits, ScanRange, Start

TOPIC = "search"
CHUNK_RECORDS = 100_000
VALUE = b"v" * 87
SECONDS_MAX = 15.0


def search(options: argparse.Namespace, _: Path) -> dict[str, object]:
    """Load the topic, and search it by key, text and pattern from both ends, and with commands."""
    records = max(CHUNK_RECORDS, options.records // CHUNK_RECORDS * CHUNK_RECORDS)
    key = f"key-{records // 2:09d}"
    filters = {
        "key": RecordFilter(key=key.encode()),
        "text": RecordFilter(text=key),
        "regular expression": RecordFilter(kind="regex", text=f"^{key[:-1]}[{key[-1]}]$"),
    }
    starts: tuple[Start, ...] = ("oldest", "newest")
    case = f"one record among {records:,} of 100 B"
    outcomes: list[Outcome] = []
    with running_cluster() as bootstrap:
        asyncio.run(_load(bootstrap, records))
        for name, wanted in filters.items():
            seconds = [asyncio.run(_search(bootstrap, start, wanted)) for start in starts]
            texts = (f"{taken:.1f} s from the {start}" for taken, start in zip(seconds, starts, strict=True))
            outcomes.append(
                Outcome(
                    f"{case}, found by {name} over the whole topic",
                    ", ".join(texts),
                    f"at most {SECONDS_MAX:g} s",
                    max(seconds) <= SECONDS_MAX,
                )
            )
        taken = _search_with_commands(bootstrap, key)
        outcomes.append(Outcome(f"{case}, `fairlead consume` piped to `grep`", f"{taken:.1f} s"))
    return {"outcomes": [each.document() for each in outcomes]}


async def _load(bootstrap: str, records: int) -> None:
    """Write the records, each with a unique key."""
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        await admin.create_topic(TOPIC, partitions=3)
        for first in range(0, records, CHUNK_RECORDS):
            keys = [b"key-%09d" % number for number in range(first, first + CHUNK_RECORDS)]
            await producer.send_batch(
                TOPIC, pa.RecordBatch.from_pydict({"key": keys, "value": [VALUE] * CHUNK_RECORDS})
            )


async def _search(bootstrap: str, start: Start, wanted: RecordFilter) -> float:
    """Search the whole topic for one record, and return the seconds."""
    scan_range = ScanRange(topic=TOPIC, start=start)
    limits = ScanLimits(records=50, nbytes=1 << 40, seconds=600)
    begun = time.monotonic()
    found = await found_page(Scan({"bootstrap": bootstrap}, scan_range, wanted, limits), scan_range, 50)
    seconds = time.monotonic() - begun
    if len(found.records) != 1:
        message = f"{len(found.records)} records have the key"
        raise RuntimeError(message)
    return seconds


def _search_with_commands(bootstrap: str, key: str) -> float:
    """Search with `fairlead consume` and `grep`, as without the console, and return the seconds."""
    fairlead = str(Path(sys.executable).with_name("fairlead"))
    consume = [fairlead, "consume", TOPIC, "-o", "start", "-e", "-f", "%k %v\\n", "--bootstrap", bootstrap]
    begun = time.monotonic()
    with subprocess.Popen(consume, stdout=subprocess.PIPE) as printing:
        found = subprocess.run(
            ["grep", "-c", f"^{key} "], stdin=printing.stdout, capture_output=True, check=True
        )
    if int(found.stdout) != 1:
        message = f"grep has found {int(found.stdout)} records"
        raise RuntimeError(message)
    return time.monotonic() - begun
