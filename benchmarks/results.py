"""The results files of the benchmarks, as the page needs them: parts that were measured, without those only tried."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ASKED_MIN = {"records": 1_000_000, "pairs": 3, "rounds": 3, "triggers": 30}
"""Whoever asked for less wanted to see whether it runs: such figures never get onto the page."""


class Results:
    """What a folder of results files holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[tuple[str, str], dict[str, Any] | None] = {}

    def part(self, file: str, name: str) -> dict[str, Any] | None:
        """What was measured of a part; None with a word on standard error where it was not, or was only tried."""
        if (file, name) not in self._parts:
            self._parts[file, name] = self._read(file, name)
        return self._parts[file, name]

    def _read(self, file: str, name: str) -> dict[str, Any] | None:
        path = self._folder / file
        document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        measured: dict[str, Any] | None = document.get(name)
        why = "not measured yet" if measured is None else shortcoming(measured)
        if why:
            print(f"{file}, {name}: left out, {why}", file=sys.stderr)
            return None
        return measured


def shortcoming(measured: dict[str, Any]) -> str:
    """Why a part is a try; an empty string where it is a measurement."""
    if "asked" not in measured:
        return "the results do not say what was asked for"
    for name, least in ASKED_MIN.items():
        if (given := measured["asked"].get(name, least)) < least:
            return f"{given:,} {name} were asked for, {least:,} are needed"
    return ""
