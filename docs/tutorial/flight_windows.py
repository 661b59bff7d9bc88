"""Count the flights of each carrier and hour with `fairlead job run flight_windows`, and check the result.

This module is the last part of `make demo`. The pipeline counts the flights of the topic in windows of event time and
writes each window into a topic once the watermark has passed the end of the window; this module compares every window
with a count computed directly from the file. The module is used by flights.py.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from fairlead import Consumer

WINDOWS = "flight-windows"
WATERMARK = timedelta(hours=2)
COMMAND = ("job", "run", "flight_windows", "--option", "watermark=2 hours", "--master", "local[2]", "--once")
OUTPUT = {
    "carrier": pa.string(),
    "window_start": pa.timestamp("us", "UTC"),
    "flights": pa.int64(),
    "delayed": pa.int64(),
    "minutes": pa.float64(),
}


def run_pipeline(bootstrap: str) -> str:
    """Run the pipeline over the records in the topic; return the lines that it printed about its batches."""
    command = [str(Path(sys.executable).with_name("fairlead")), *COMMAND, "--bootstrap", bootstrap]
    done = subprocess.run([*command, "--output", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(done.returncode)
    # Spark logs many messages when it starts.
    told = "\n".join(f"  {line}" for line in done.stderr.splitlines() if line.startswith("batch "))
    records = json.loads(done.stdout)["records"]
    return f"{told}\n  {records:,} records read"


def windows_of_topic(bootstrap: str) -> pa.Table:
    """Return every window that the pipeline wrote."""
    return asyncio.run(_read(bootstrap))


def windows_of_file(flights: pa.Table) -> tuple[pa.Table, int]:
    """Return all windows computed from the file, and the number of windows that the watermark has not passed.

    The pipeline writes the window of an hour when the latest flight is two hours after the end of the hour.
    """
    grouped = flights.group_by(["carrier", "time_hour"]).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")]
    )
    hours = grouped["time_hour"].cast(OUTPUT["window_start"])
    minutes = pc.fill_null(grouped["dep_delay_sum"].cast(pa.float64()), 0.0)
    columns = [grouped["carrier"], hours, grouped["count_all"], grouped["dep_delay_count"], minutes]
    latest: datetime = pc.max(hours).as_py()
    closed = pc.less_equal(hours, pa.scalar(latest - WATERMARK - timedelta(hours=1), hours.type))
    every = pa.table(columns, schema=pa.schema(OUTPUT))
    written = every.filter(closed)
    return _in_order(written), every.num_rows - written.num_rows


def differences(ours: pa.Table, direct: pa.Table) -> int:
    """Return the number of rows that are in only one of the tables; each window must have been written once."""
    if ours.equals(direct):
        return 0
    of_topic, of_file = ([tuple(row.values()) for row in table.to_pylist()] for table in (ours, direct))
    return max(1, len(set(of_topic) ^ set(of_file)), abs(len(of_topic) - len(of_file)))


async def _read(bootstrap: str) -> pa.Table:
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic=WINDOWS)
        ends = await consumer.end_offsets()
        values = [batch.to_arrow().column("value") async for batch in consumer.batches(until=ends)]
    lines = b"\n".join(value for column in values for value in column.to_pylist())
    schema = pa.schema({**OUTPUT, "window_start": pa.string()})
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = pa_json.read_json(pa.BufferReader(lines), parse_options=options).select(list(OUTPUT))
    times = pc.strptime(table["window_start"], format="%Y-%m-%dT%H:%M:%SZ", unit="us")
    return _in_order(table.set_column(1, "window_start", times.cast(OUTPUT["window_start"])))


def _in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([("carrier", "ascending"), ("window_start", "ascending")])
