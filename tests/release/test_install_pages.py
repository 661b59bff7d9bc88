"""Pages that explain installing: one page lists the tested ways, and others name the extra and link to this page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import checkout

INSTALLING = Path("docs/how-to/install.md")
# Readers of this page have already installed the command line, so `pip install` with the bare package name is enough
# here.
OF_THE_INSTALLED = Path("docs/reference/command-line.md")
BY_NAME = re.compile(r"(?:pip|uv|pipx) (?:install|add) [^`\n]*\bfairlead\b[^`\n]*")


def pages() -> list[Path]:
    """List the public pages: at the root, of the documentation and of the charts."""
    shown = [path for path in checkout.files() if path.suffix == ".md"]
    return [path for path in shown if path not in {INSTALLING, OF_THE_INSTALLED}]


def project() -> dict[str, Any]:
    """Return the project table of pyproject.toml."""
    said: dict[str, Any] = tomllib.loads((checkout.ROOT / "pyproject.toml").read_text())["project"]
    return said


def test_no_other_page_installs_by_name() -> None:
    """No page installs a package `fairlead` from an index, where another project has this name."""
    found = {str(path): BY_NAME.findall((checkout.ROOT / path).read_text()) for path in pages()}

    assert {path: lines for path, lines in found.items() if lines} == {}
    assert BY_NAME.search((checkout.ROOT / INSTALLING).read_text()) is not None


def test_the_page_names_every_extra() -> None:
    """The table of the page has exactly the extras of pyproject.toml."""
    rows = re.findall(r"^\| `fairlead\[(\w+)\]` \|", (checkout.ROOT / INSTALLING).read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(project()["optional-dependencies"])


def test_the_page_installs_this_wheel() -> None:
    """Wheels in the page's commands have the version of this checkout."""
    wheels = re.findall(r"fairlead-[\w.]+?-py3-none-any\.whl", (checkout.ROOT / INSTALLING).read_text())

    assert set(wheels) == {f"fairlead-{project()['version']}-py3-none-any.whl"}
