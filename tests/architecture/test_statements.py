"""Attributes get a value when they are declared, and log events are words."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRODUCT = ("api", "broker", "client", "console", "operator", "spark")
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def statements() -> Iterator[tuple[Path, ast.AST]]:
    """Yield every node of every module of the product."""
    for path in checkout.python_files():
        if path.parts[0] in PRODUCT:
            for node in ast.walk(ast.parse((checkout.ROOT / path).read_text())):
                yield path, node


def test_every_attribute_has_a_value() -> None:
    """No method declares an attribute of `self` without a value, since a reader would need to find its assignment."""
    found = [
        f"{path}:{node.lineno}"
        for path, node in statements()
        if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Attribute)
    ]

    assert found == []


def test_log_events_are_words() -> None:
    """The event of a log line is text of several words without underscores, such as `lease not kept alive`."""
    found = [
        f"{path}:{node.lineno}"
        for path, node in statements()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS
        and isinstance(node.func.value, ast.Name | ast.Attribute)
        and ast.unparse(node.func.value).endswith("log")
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
        and ("_" in node.args[0].value or " " not in node.args[0].value)
    ]

    assert found == []
