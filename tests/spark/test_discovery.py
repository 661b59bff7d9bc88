"""Tests of Spark's search for modules named `pyspark_*`, where an error in one module hides all sources."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LOOK = """
import importlib, json
modules = [importlib.import_module(name) for name in ("pyspark_fairlead", "pyspark_fairlead_delta")]
print(json.dumps([[hasattr(module, "DefaultSource"), module.reason] for module in modules]))
"""
"""Program that performs the relevant steps of Spark's search for a source with each module."""

FAKES = {
    "none": {
        "pyspark/__init__.py": "raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')"
    },
    "old": {"pyspark/__init__.py": "", "pyspark/version.py": "__version__ = '4.1.3'"},
    "broken": {"pyspark/__init__.py": "", "pyspark/version.py": "__version__ = '4.2.0.dev1'"},
    "mad": {"pyspark/__init__.py": "", "pyspark/version.py": "raise RuntimeError('odd')"},
}


def look(tmp_path: Path, files: dict[str, str], program: str = LOOK) -> str:
    """Run a program in a clean process with these files first on its path."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    head = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        ("none", ["No module named 'pyspark'", "pip install 'fairlead[spark]'"]),
        ("old", ["PySpark 4.1.3 is too old", "4.2"]),
        ("broken", ["ModuleNotFoundError", "pip install 'fairlead[spark]'"]),
        ("mad", ["RuntimeError: odd"]),
    ],
)
def test_without_a_pyspark_that_works_there_is_a_reason_and_no_source(
    tmp_path: Path, fake: str, words: list[str]
) -> None:
    """Without PySpark, or with an old or broken PySpark, the modules define no source and state the reason."""
    found = json.loads(look(tmp_path, FAKES[fake]))

    for has_source, reason in found:
        assert not has_source
        assert all(word in reason for word in words)


def test_with_a_pyspark_that_works_there_are_sources_and_no_reason(tmp_path: Path) -> None:
    """The installed PySpark finds both sources."""
    assert json.loads(look(tmp_path, {})) == [[True, None], [True, None]]


def test_another_vendors_source_is_found_beside_ours(tmp_path: Path) -> None:
    """Where Fairlead's source cannot work, Spark's own search still finds another vendor's source."""
    vendor = """
        from pyspark.sql.datasource import DataSource
        class DefaultSource(DataSource):
            @classmethod
            def name(cls):
                return "vendor"
    """
    # Spark's search needs a socket to its JVM; the test program imports the same modules in the same order.
    search = """
        import sys
        sys.modules["fairlead_spark.options"] = None
        from importlib import import_module
        from pkgutil import iter_modules
        from pyspark.sql.datasource import DataSource
        names = []
        for info in iter_modules():
            if info.name.startswith("pyspark_"):
                module = import_module(info.name)
                if hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource):
                    names.append(module.DefaultSource.name())
        import pyspark_fairlead
        print(sorted(names), pyspark_fairlead.reason)
    """

    found = look(tmp_path, {"pyspark_vendor/__init__.py": textwrap.dedent(vendor)}, search)

    assert "'vendor'" in found
    assert "'fairlead'" not in found
    assert "fairlead_spark.options" in found
