"""Benchmarks pass absolute folders to other programs, which may run in a different working directory."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import checkout

FOLDER = checkout.ROOT / "benchmarks"


def test_a_relative_folder_becomes_absolute(tmp_path: Path) -> None:
    """A relative `--cache` is resolved against the working directory, and so is the default."""
    program = (
        "import argparse, json, parts\n"
        "parser = argparse.ArgumentParser()\n"
        "parts.add_folders(parser)\n"
        "chosen = [parser.parse_args(given) for given in ([], ['--cache', 'kept', '--data', '..'])]\n"
        "print(json.dumps([[str(each.cache), str(each.data)] for each in chosen]))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    default, chosen = json.loads(printed)

    assert default == [str(tmp_path / "build/bench"), "None"]
    assert chosen == [str(tmp_path / "kept"), str(tmp_path / "..")]


def test_no_option_is_a_path_as_given() -> None:
    """No benchmark has an option of type `Path`, which would stay relative: Maven resolves paths against its pom."""
    relative = [
        f"{path.relative_to(FOLDER)}:{node.lineno}"
        for path in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword)
        and node.arg == "type"
        and isinstance(node.value, ast.Name)
        and node.value.id == "Path"
    ]

    assert relative == []
