"""Results of a benchmark: records, bytes and latencies, shown live on a terminal and summarised at the end.

`bench` uses this module. The module must not depend on the kind of benchmark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fairlead import clock
from fairlead.cli.options import OutputFormat
from fairlead.cli.printing import print_document, print_rows

if TYPE_CHECKING:
    from rich.live import Live

SHOWN_EVERY_SECONDS = 0.5
PERCENTILES = (50, 95, 99, 99.9)


@dataclass(slots=True)
class Figures:
    """Counts of one run of a benchmark. `begin` records the start time, and `add` counts records."""

    what: str
    records: int = 0
    nbytes: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    """Latencies of batches, or of records if single records are measured."""
    _began: float = 0.0
    _ended: float = 0.0
    _shown_at: float = 0.0
    _live: Live | None = None

    def begin(self) -> None:
        """Record the start time of the run."""
        self._began = self._ended = clock.monotonic()

    def add(self, records: int, nbytes: int, latency_seconds: float | None = None) -> None:
        """Count records that have arrived."""
        self.records += records
        self.nbytes += nbytes
        if latency_seconds is not None:
            self.latencies_ms.append(latency_seconds * 1000)
        self._ended = clock.monotonic()
        if self._live is not None and self._ended >= self._shown_at:
            self._shown_at = self._ended + SHOWN_EVERY_SECONDS
            self._live.update(self._line(), refresh=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the counts live if standard error is a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def summary(self) -> dict[str, float | int | str]:
        """Return the results of the whole run, with units in their names."""
        seconds = max(self._ended - self._began, 1e-9)
        found: dict[str, float | int | str] = {
            "what": self.what,
            "records": self.records,
            "bytes": self.nbytes,
            "seconds": round(seconds, 3),
            "records_per_second": round(self.records / seconds),
            "megabytes_per_second": round(self.nbytes / seconds / 1e6, 2),
        }
        if self.latencies_ms:
            values = np.percentile(self.latencies_ms, PERCENTILES)
            for percentile, value in zip(PERCENTILES, values, strict=True):
                found[f"p{percentile:g}_ms"] = round(float(value), 3)
            found["max_ms"] = round(max(self.latencies_ms), 3)
        return found

    def print(self, output: OutputFormat) -> None:
        """Print the summary."""
        summary = self.summary()
        if output is OutputFormat.TABLE:
            print_rows([name.upper().replace("_", " ") for name in summary], [list(summary.values())])
        else:
            print_document(summary, output)

    def _line(self) -> str:
        summary = self.summary()
        latency = f", p99 {summary['p99_ms']} ms" if self.latencies_ms else ""
        return (
            f"{self.records:,} records, {summary['records_per_second']:,} records/s,"
            f" {summary['megabytes_per_second']} MB/s{latency}"
        )
