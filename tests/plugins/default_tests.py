"""Tests that `make test` runs, by their names in pages: tests without the mark `scenario`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import checkout


def run_by_default(named: str) -> bool:
    """Return whether a test, or a test of a file, exists and is not a scenario."""
    path, _, name = named.partition("::")
    file = checkout.ROOT / path
    if not file.exists():
        return False
    body = ast.parse(file.read_text()).body
    marks = [each for each in body if isinstance(each, ast.Assign) and _is_named(each.targets, "pytestmark")]
    functions = [each for part in body for each in (part.body if isinstance(part, ast.ClassDef) else [part])]
    tests = [
        each
        for each in functions
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and each.name.startswith("test_")
        and name in {"", each.name}
    ]
    return not _scenario(marks) and any(not _scenario(each.decorator_list) for each in tests)


def _is_named(targets: Iterable[ast.expr], name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in targets)


def _scenario(nodes: Iterable[ast.AST]) -> bool:
    """Return whether a mark `scenario` applies to all cases, and not only to some parameters."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == "scenario"
        for node in nodes
        if not ast.unparse(node).startswith("pytest.mark.parametrize")
        for part in ast.walk(node)
    )
