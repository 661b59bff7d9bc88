"""Runs the requested parts of a benchmark, each with its own folder and its own entry in the results."""

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
    """Return the path in an option as an absolute path.

    Benchmarks pass their folders to other programs, and Maven interprets a relative path as relative to the pom.
    """
    return Path(text).absolute()


def add_folders(parser: argparse.ArgumentParser, *, kept: str = "programs and jars of the peers") -> None:
    """Add the options `--cache` (whose help names `kept`) and `--data`, both absolute paths."""
    parser.add_argument("--cache", type=absolute_path, default="build/bench", help=f"folder of {kept}")
    parser.add_argument(
        "--data", type=absolute_path, default=None, help="folder for the data of all processes"
    )


def measured_as(options: argparse.Namespace) -> dict[str, object]:
    """Return the day of a run and its numeric options, which distinguish a trial run from a measurement."""
    asked = {name: value for name, value in vars(options).items() if isinstance(value, int | float)}
    return {"day": datetime.now(UTC).date().isoformat(), "asked": asked}


def measure_parts(
    parts: Mapping[str, Callable[[argparse.Namespace, Path], Any]],
    options: argparse.Namespace,
    file_name: str,
) -> None:
    """Measure `options.parts`, or all parts; print each result and store it in the results file in `options.cache`."""
    options.cache.mkdir(parents=True, exist_ok=True)
    # SIGTERM raises SystemExit, so that the context managers of the run stop the brokers.
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
