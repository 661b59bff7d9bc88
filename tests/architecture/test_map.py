"""The map in ARCHITECTURE.md is correct: every named path exists, and every package is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import checkout

RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
CODE_SPAN = re.compile(r"`([\w.-]+(?:/[\w.-]*)*)`")


def named_paths() -> set[str]:
    """Return the code spans of ARCHITECTURE.md that are paths: they contain a slash or end with a file extension."""
    spans: list[str] = CODE_SPAN.findall((checkout.ROOT / "ARCHITECTURE.md").read_text())
    endings = (".py", ".md", ".toml", ".txt", ".sh")
    return {span for span in spans if "/" in span or span.endswith(endings)}


def test_every_named_path_exists() -> None:
    """Every folder and file named in ARCHITECTURE.md exists."""
    named = named_paths()

    assert named, "the map names no paths at all"
    assert [path for path in sorted(named) if not (checkout.ROOT / path).exists()] == []


def test_every_package_is_named() -> None:
    """Every folder of the packages is named in ARCHITECTURE.md."""
    named = {path.rstrip("/") for path in named_paths()}

    assert [str(package) for package in checkout.packages() if str(package) not in named] == []


def test_no_package_is_empty() -> None:
    """Every package has a module in addition to its `__init__.py`, or lists its public names there."""
    inhabited = {
        path.parent for path in checkout.python_files(*checkout.PACKAGE_FOLDERS) if path.stem != "__init__"
    }

    assert [str(package) for package in checkout.packages() if package not in inhabited] == []


def test_every_package_enters_the_build_of_images() -> None:
    """The folders of all packages are in the build of the image and among the files that make it outdated."""
    listed = (checkout.ROOT / ".dockerignore").read_text().splitlines()
    sources = (checkout.ROOT / ".ci" / "image.py").read_text()
    named = re.search(r"^PACKAGE_FOLDERS = \((.*)\)$", sources, re.MULTILINE)
    assert named is not None

    assert {f"!{folder}" for folder in checkout.PACKAGE_FOLDERS} <= set(listed)
    assert {f'"{folder}"' for folder in checkout.PACKAGE_FOLDERS} <= set(named[1].split(", "))


@pytest.mark.parametrize("page", sorted(checkout.ROOT.glob("*.md")), ids=lambda page: page.name)
def test_every_link_of_the_top_level_pages_leads_somewhere(page: Path) -> None:
    """Every relative link of a page at the root leads to a file or a folder of the checkout."""
    links = RELATIVE_LINK.findall(page.read_text())

    assert [link for link in links if not (checkout.ROOT / link).exists()] == []
