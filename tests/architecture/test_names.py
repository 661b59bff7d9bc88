"""Modules are named by their concept, and no folder shadows a module of the standard library."""

from __future__ import annotations

import checkout

# Names that fit everything attract unrelated code.
SHAPELESS_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"})
TOP_FOLDERS = (
    "api",
    "broker",
    "client",
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
