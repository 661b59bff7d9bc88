"""Writes the results of a proof to docs/proof/<name>.json, with all data needed to judge or repeat the proof.

Used by `prove.py`. The record describes the properties of the machine that matter for the figures, but does not name
the machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path("docs/proof")
PRODUCT_FOLDERS: Final = ("api", "broker", "client", "operator", "spark")


def write_record(name: str, *, passed: bool, counts: dict[str, Any], seconds: float) -> Path:
    """Write the record of a proof, replacing the previous record, and return its path.

    The function must run in the root folder of the checkout.
    """
    record = {
        "proof": name,
        "passed": passed,
        "commit": commit(),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": machine(),
        "counts": counts,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def read_counts(name: str) -> dict[str, Any]:
    """Return the counts in the record of a proof; empty without a record."""
    path = FOLDER / f"{name}.json"
    counts: dict[str, Any] = json.loads(path.read_text())["counts"] if path.exists() else {}
    return counts


def commit() -> str:
    """Return the commit of the checkout, followed by `+` if files of the product have uncommitted changes."""
    head = _git("rev-parse", "HEAD")
    return head + "+" if _git("status", "--porcelain", "--", *PRODUCT_FOLDERS) else head


def machine() -> dict[str, Any]:
    """Return the cores, memory, kernel and Python version of the machine."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release().partition("-")[0],
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()
