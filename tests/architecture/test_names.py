"""Modules are named by their concept, and no folder shadows a module of the standard library."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Modules with names that fit everything attract unrelated code.
SHAPELESS_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"})
# Words for persons, which `.ci/prose.py` also finds in sentences, are less precise than nouns such as broker and
# request.
PERSON_WORDS = frozenset(
    {"who", "whoever", "whom", "nobody", "somebody", "anybody", "everybody", "anew", "tell", "tells", "told"}
    | {"hear", "hears", "heard", "office"}
)
# The answer to the public call `GET /v1/whoami`.
PUBLIC_NAMES = frozenset({"WhoAmI"})
TOP_FOLDERS = (
    "api",
    "broker",
    "client",
    "console",
    "operator",
    "spark",
    "tests",
    "benchmarks",
    "docs",
    "charts",
    "manifests",
)


def test_no_module_has_a_shapeless_name() -> None:
    """No file or folder of Python sources is called utils, helpers, common, misc or manager."""
    shapeless = [
        str(path)
        for path in checkout.python_files()
        if SHAPELESS_NAMES & {*path.parts[:-1], path.stem, *path.stem.split("_")}
    ]

    assert shapeless == []


def test_no_top_folder_is_a_package() -> None:
    """No top-level folder has an `__init__.py`: operator/ would shadow the module of the standard library."""
    assert [folder for folder in TOP_FOLDERS if (checkout.ROOT / folder / "__init__.py").exists()] == []


def test_tests_are_no_packages() -> None:
    """No folder of tests is a package, so that two test files may have the same name."""
    assert [str(path) for path in checkout.python_files("tests") if path.name == "__init__.py"] == []


def words(name: str) -> set[str]:
    """Return the words of an identifier in lower case."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def definitions(path: Path) -> Iterator[str]:
    """Yield the name of a file, and the names of its functions and classes."""
    yield path.stem
    for node in ast.walk(ast.parse((checkout.ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def test_definitions_are_named_by_brokers_requests_and_records() -> None:
    """No file, function or class is named with a word for a person."""
    found = [
        f"{path}: {name}"
        for path in checkout.python_files()
        for name in definitions(path)
        if words(name) & PERSON_WORDS and name not in PUBLIC_NAMES
    ]

    assert found == []
