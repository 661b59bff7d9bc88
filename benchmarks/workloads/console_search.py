"""Time that the console takes to find one record by key in a topic with many records of 100 bytes.

    make bench-console [BENCH="--records 10000000"]

A broker runs in this process, as in `fairlead.testing`. The search runs the code of the console, and is
compared with `fairlead consume` and `grep`. Each result is a line of JSON: seconds, records and bytes read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from fairlead import Admin, Producer
from fairlead.testing import running_cluster
from fairlead_console.records.filters import RecordFilter
from fairlead_console.records.found import found_page
from fairlead_console.records.scan import Scan, ScanLimits, ScanRange, Start

TOPIC = "search"
CHUNK_RECORDS = 100_000
VALUE = b"v" * 87
TARGET_SECONDS = 15.0


async def load(bootstrap: str, records: int) -> None:
    """Write the records, each with a unique key."""
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        await admin.create_topic(TOPIC, partitions=3)
        for first in range(0, records, CHUNK_RECORDS):
            keys = [b"key-%09d" % number for number in range(first, first + CHUNK_RECORDS)]
            await producer.send_batch(
                TOPIC, pa.RecordBatch.from_pydict({"key": keys, "value": [VALUE] * CHUNK_RECORDS})
            )


async def search(bootstrap: str, start: Start, wanted: RecordFilter) -> dict[str, object]:
    """Search the whole topic for one record, and return the measurement."""
    scan_range = ScanRange(topic=TOPIC, start=start)
    limits = ScanLimits(records=50, nbytes=1 << 40, seconds=600)
    begun = time.monotonic()
    found = await found_page(Scan({"bootstrap": bootstrap}, scan_range, wanted, limits), scan_range, 50)
    seconds = time.monotonic() - begun
    if len(found.records) != 1:
        message = f"{len(found.records)} records have the key"
        raise RuntimeError(message)
    return {
        "case": f"{wanted.kind if wanted.text else 'key'}, {start}",
        "seconds": round(seconds, 2),
        "records": found.progress.records,
        "bytes": found.progress.nbytes,
        "is_in_target": seconds <= TARGET_SECONDS,
    }


def search_with_commands(bootstrap: str, key: str) -> dict[str, object]:
    """Search with `fairlead consume` and `grep`, as is done on the command line without the console."""
    fairlead = str(Path(sys.executable).with_name("fairlead"))
    consume = [fairlead, "consume", TOPIC, "-o", "start", "-e", "-f", "%k %v\\n", "--bootstrap", bootstrap]
    begun = time.monotonic()
    with subprocess.Popen(consume, stdout=subprocess.PIPE) as printing:
        found = subprocess.run(
            ["grep", "-c", f"^{key} "], stdin=printing.stdout, capture_output=True, check=True
        )
    return {
        "case": "fairlead consume | grep",
        "seconds": round(time.monotonic() - begun, 2),
        "found": int(found.stdout),
    }


def main() -> None:
    """Load the topic, search it in each way, and print the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000_000)
    records = max(CHUNK_RECORDS, parser.parse_args().records // CHUNK_RECORDS * CHUNK_RECORDS)
    key = f"key-{records // 2:09d}"
    starts: tuple[Start, ...] = ("oldest", "newest")
    with running_cluster() as bootstrap:
        asyncio.run(load(bootstrap, records))
        for wanted in (
            RecordFilter(key=key.encode()),
            RecordFilter(text=key),
            RecordFilter(kind="regex", text=f"^{key[:-1]}[{key[-1]}]$"),
        ):
            for start in starts:
                print(json.dumps(asyncio.run(search(bootstrap, start, wanted))), flush=True)
        print(json.dumps(search_with_commands(bootstrap, key)), flush=True)


if __name__ == "__main__":
    main()
