"""Results files of the benchmarks, read for the page: the measured parts, without trial runs.

The figures of the page are stored next to its pictures, so that one part can be measured again on a machine that has no
other results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ASKED_MIN = {"records": 1_000_000, "pairs": 3, "rounds": 3, "triggers": 30}
"""Minimum values of numeric options for a measurement. A run with lower values is a trial run, whose figures are never
written to the page."""

STEPS_MIN = 3
"""Minimum number of steps of a measurement of growing work."""


class Results:
    """Results in a folder of results files; missing parts are taken from the stored figures of the page."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder = folder
        self._kept = kept
        self._parts: dict[tuple[str, str], dict[str, Any] | None] = {}

    def part(self, file: str, name: str) -> dict[str, Any] | None:
        """Return the measurements of a part; print a message and return None if there are none, or only a trial run."""
        if (file, name) not in self._parts:
            self._parts[file, name] = self._read(file, name)
        return self._parts[file, name]

    def keep(self) -> None:
        """Store the parts that were requested, so that later runs find them; write one file for each results file."""
        documents: dict[str, dict[str, Any]] = {}
        for (file, name), measured in self._parts.items():
            if measured is not None:
                documents.setdefault(file, {})[name] = measured
        for file, document in documents.items():
            text = json.dumps(document, indent=1) + "\n"
            (self._kept / file).write_text(text, encoding="utf-8")

    def _read(self, file: str, name: str) -> dict[str, Any] | None:
        measured = document_of(self._folder / file).get(name)
        why = "not measured yet" if measured is None else shortcoming(measured)
        if not why:
            return measured
        kept = document_of(self._kept / file).get(name)
        instead = f"; the result of {kept['day']} is kept" if kept else ""
        print(f"{file}, {name}: left out, {why}{instead}", file=sys.stderr)
        return kept


def document_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return the content of a results file by part; empty if the file does not exist."""
    document: dict[str, dict[str, Any]] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    )
    return document


def shortcoming(measured: dict[str, Any]) -> str:
    """Return the reason why a result is considered a trial run; empty if the result is a measurement."""
    if "asked" not in measured:
        return "the results do not state the requested counts"
    for name, least in ASKED_MIN.items():
        if (given := measured["asked"].get(name, least)) < least:
            return f"{given:,} {name} were requested, but at least {least:,} are needed"
    if len(measured.get("steps", range(STEPS_MIN))) < STEPS_MIN:
        return f"{len(measured['steps'])} steps were requested, but at least {STEPS_MIN} are needed"
    return ""
