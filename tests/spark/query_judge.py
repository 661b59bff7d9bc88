"""A comparison of the sinks of streaming queries with the topic that the queries read.

Every sink is compared with the topic record by record. The files are also compared with the checkpoint batch by batch:
each micro-batch must have written exactly the records of its offsets; otherwise the source delivered a record twice or
not at all.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from fairlead.blocking import Consumer
from fairlead_api.bodies.requests import Isolation
from waiting import LOOK_SECONDS, pause_blocking

Places = Counter[tuple[int, int, str]]
"""Number of copies of each record, by partition, offset and value."""


@dataclass(slots=True)
class Verdict:
    """The findings for one sink."""

    records: int = 0
    """Number of distinct records of the topic in the sink."""
    lost: int = 0
    repeated: int = 0
    """Number of copies in addition to the first copy of each record."""
    unknown: int = 0
    """Number of records that the topic does not have at that partition and offset."""
    batches: int = 0
    batches_unlike_the_checkpoint: list[str] = field(default_factory=list)

    @property
    def is_exactly_once(self) -> bool:
        """Whether every record is in the sink once and each micro-batch agrees with the checkpoint."""
        return not (self.lost or self.repeated or self.unknown or self.batches_unlike_the_checkpoint)

    @property
    def is_at_least_once(self) -> bool:
        """Whether the sink has every record and no other records."""
        return not (self.lost or self.unknown)


OPEN_SECONDS_MAX: Final = 120.0
"""Time after which no transaction of a killed task or driver is open."""


def read_topic(
    bootstrap: str, topic: str, isolation: Isolation = "read_uncommitted"
) -> dict[tuple[int, int], str]:
    """Return every record of a topic by partition and offset; with `read_committed`, when no transaction is open."""
    with Consumer(bootstrap, isolation=isolation) as consumer, Consumer(bootstrap) as other:
        for each in (consumer, other):
            each.assign(topic=topic)
        deadline = time.monotonic() + OPEN_SECONDS_MAX
        while consumer.end_offsets() != other.end_offsets():
            assert time.monotonic() < deadline, "a transaction stays open"
            pause_blocking(LOOK_SECONDS)
        until = consumer.end_offsets()
        return {
            (record.partition, record.offset): (record.value or b"").decode()
            for record in consumer.records(until=until)
        }


def judge_files(folder: Path, truth: dict[tuple[int, int], str]) -> Verdict:
    """Compare the files of Spark's own sink, which writes each micro-batch once, with the topic and the checkpoint."""
    by_batch = {batch: _rows_of(files) for batch, files in _files_by_batch(folder / "files").items()}
    verdict = judge_places(sum(by_batch.values(), Counter()), truth)
    verdict.batches = len(by_batch)
    ends: dict[str, int] = {}
    for batch, offsets in _offsets_by_batch(folder / "checkpoints" / "files").items():
        wanted = {(int(index), at) for index, end in offsets.items() for at in range(ends.get(index, 0), end)}
        ends = offsets
        found = {(partition, offset) for partition, offset, _ in by_batch.pop(batch, Counter())}
        if found != wanted:
            verdict.batches_unlike_the_checkpoint.append(
                f"batch {batch}: {len(wanted - found)} missing, {len(found - wanted)} too many"
            )
    verdict.batches_unlike_the_checkpoint += [f"batch {batch}: not in the checkpoint" for batch in by_batch]
    return verdict


def judge_lake(folder: Path, truth: dict[tuple[int, int], str]) -> Verdict:
    """Compare the Delta table with the topic."""
    table = DeltaTable(str(folder / "lake"))
    verdict = judge_places(_rows(table.to_pyarrow_table()), truth)
    # Version 0 is the empty table.
    verdict.batches = table.version()
    return verdict


def judge_copy(
    bootstrap: str, copy: str, truth: dict[tuple[int, int], str], isolation: Isolation = "read_uncommitted"
) -> Verdict:
    """Compare the written topic with the topic that was read; all values are distinct."""
    values = Counter(read_topic(bootstrap, copy, isolation).values())
    known = set(truth.values())
    return Verdict(
        records=len(values.keys() & known),
        lost=len(known - values.keys()),
        repeated=sum(count - 1 for count in values.values()),
        unknown=len(values.keys() - known),
    )


def judge_places(found: Places, truth: dict[tuple[int, int], str]) -> Verdict:
    """Compare the contents of a sink with the topic, record by record."""
    wanted = {(partition, offset, value) for (partition, offset), value in truth.items()}
    return Verdict(
        records=len(found.keys() & wanted),
        lost=len(wanted - found.keys()),
        repeated=sum(count - 1 for count in found.values()),
        unknown=len(found.keys() - wanted),
    )


def _rows_of(files: set[Path]) -> Places:
    return sum((_rows(pq.read_table(file)) for file in sorted(files)), Counter())


def _rows(table: pa.Table) -> Places:
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    return Counter(zip(*columns, strict=True))


def _files_by_batch(sink: Path) -> dict[int, set[Path]]:
    """Return the files that each micro-batch added, from the log of Spark's file sink.

    A compact entry of the sink's log lists all earlier files.
    """
    entries: dict[int, set[Path]] = {}
    known: set[Path] = set()
    for entry in _numbered(sink / "_spark_metadata"):
        batch, _, compact = entry.name.partition(".")
        lines = entry.read_text(encoding="utf-8").splitlines()[1:]
        files = {Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines}
        entries[int(batch)] = files - known if compact else files
        known |= files
    return entries


def _offsets_by_batch(checkpoint: Path) -> dict[int, dict[str, int]]:
    """Return the end offset of each committed micro-batch by partition, from the checkpoint."""
    committed = {int(entry.name) for entry in _numbered(checkpoint / "commits")}
    ends: dict[int, dict[str, int]] = {}
    for entry in _numbered(checkpoint / "offsets"):
        if int(entry.name) in committed:
            document: dict[str, Any] = json.loads(entry.read_text(encoding="utf-8").splitlines()[2])
            (topic,) = document["topics"].values()
            ends[int(entry.name)] = {index: place[0] for index, place in topic["offsets"].items()}
    return ends


def _numbered(folder: Path) -> list[Path]:
    entries = [entry for entry in folder.iterdir() if entry.name.partition(".")[0].isdecimal()]
    return sorted(entries, key=lambda entry: int(entry.name.partition(".")[0]))
