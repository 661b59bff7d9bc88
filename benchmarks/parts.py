"""Runs a benchmark that has parts: those asked for, each with a folder of its own and a place in the results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def absolute_path(text: str) -> Path:
    """Turn an option into an absolute path.

    Benchmarks hand their folders to other programs, and Maven takes a relative one as relative to the pom.
    """
    return Path(text).absolute()


def add_folders(parser: argparse.ArgumentParser, *, kept: str = "programs and jars of the peers") -> None:
    """Add the options `--cache` (with `kept` in it) and `--data`, both absolute."""
    parser.add_argument("--cache", type=absolute_path, default="build/bench", help=f"folder of {kept}")
    parser.add_argument(
        "--data", type=absolute_path, default=None, help="folder for the data of all processes"
    )


def measured_as(options: argparse.Namespace) -> dict[str, object]:
    """On which day, and the numbers that the command asked for: they tell a try from a measurement."""
    asked = {name: value for name, value in vars(options).items() if isinstance(value, int | float)}
    return {"day": datetime.now(UTC).date().isoformat(), "asked": asked}


def measure_parts(
    parts: Mapping[str, Callable[[argparse.Namespace, Path], Any]],
    options: argparse.Namespace,
    file_name: str,
) -> None:
    """Measure `options.parts`, or all; print each, and put it into the file in `options.cache`, where others stay."""
    options.cache.mkdir(parents=True, exist_ok=True)
    # A signal from outside ends the brokers with the run: they are stopped where their blocks are left.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    path = options.cache / file_name
    document = json.loads(path.read_text()) if path.exists() else {}
    document |= {"machine": platform.platform(), "cores": os.cpu_count()}
    for name in options.parts or parts:
        with tempfile.TemporaryDirectory(prefix="fairlead-bench-", dir=options.data) as folder:
            document[name] = parts[name](options, Path(folder))
        document[name] |= measured_as(options)
        print(f"{name}: {json.dumps(document[name])}", flush=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
