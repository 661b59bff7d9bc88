"""The results files of the benchmarks, as the page needs them: parts that were measured, without those only tried.

What stands on the page is kept beside its pictures, so that one part can be measured again on a machine that has
measured nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ASKED_MIN = {"records": 1_000_000, "pairs": 3, "rounds": 3, "triggers": 30}
"""Fewer than these only show that the part runs: such figures never get onto the page."""


class Results:
    """What a folder of results files holds, and for the parts that it lacks what was kept of an earlier one."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder = folder
        self._kept = kept
        self._parts: dict[tuple[str, str], dict[str, Any] | None] = {}

    def part(self, file: str, name: str) -> dict[str, Any] | None:
        """What was measured of a part; None with a word on standard error where it was not, or was only tried."""
        if (file, name) not in self._parts:
            self._parts[file, name] = self._read(file, name)
        return self._parts[file, name]

    def keep(self) -> None:
        """Write what was asked for to where it is found the next time, a file for each results file."""
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
        instead = f"; that of {kept['day']} stays" if kept else ""
        print(f"{file}, {name}: left out, {why}{instead}", file=sys.stderr)
        return kept


def document_of(path: Path) -> dict[str, dict[str, Any]]:
    """What a results file holds by part; nothing where it is not there."""
    document: dict[str, dict[str, Any]] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    )
    return document


def shortcoming(measured: dict[str, Any]) -> str:
    """Why a part is a try; an empty string where it is a measurement."""
    if "asked" not in measured:
        return "the results do not say what was asked for"
    for name, least in ASKED_MIN.items():
        if (given := measured["asked"].get(name, least)) < least:
            return f"{given:,} {name} were asked for, {least:,} are needed"
    return ""
