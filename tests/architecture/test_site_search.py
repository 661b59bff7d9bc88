"""The search index of the built site has each page of the navigation with its headings and text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import checkout

HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
CONFIGURATION = checkout.ROOT / "zensical.toml"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Build the site next to a copy of its settings, and return the titles and texts of its index by page."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(CONFIGURATION, folder)
    shutil.copytree(checkout.ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [program, "build", "--clean"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, dict[str, str]] = {}
    for item in json.loads((folder / "site/search.json").read_text(encoding="utf-8"))["items"]:
        page, _, _ = item["location"].partition("#")
        found.setdefault(page, {})[item["title"]] = item["text"]
    return found


def pages(navigation: Any) -> list[str]:
    """Return the files of a navigation in order."""
    if isinstance(navigation, str):
        return [navigation]
    entries = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for entry in entries for page in pages(entry)]


@pytest.mark.slow
def test_every_page_of_the_navigation_is_found(index: dict[str, dict[str, str]]) -> None:
    """Every page of the navigation is found by its headings and has text to search."""
    navigation = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]["nav"]
    missing = []
    for page in pages(navigation):
        location = page.removesuffix(".md").removesuffix("index").removesuffix("/")
        known = index.get(f"{location}/" if location else "", {})
        told = {re.sub(r"<[^>]+>|`", "", title) for title in known}
        text = (checkout.ROOT / "docs" / page).read_text(encoding="utf-8")
        if not any(known.values()):
            missing.append(page)
        if "```" not in text:
            missing += [
                f"{page}: {title}" for title in HEADING.findall(text) if title.replace("`", "") not in told
            ]

    assert missing == []


def test_words_of_a_page_lead_to_it(index: dict[str, dict[str, str]]) -> None:
    """A search for draining a broker finds the page and the section that explain it."""
    found = {
        (page, title)
        for page, sections in index.items()
        for title, text in sections.items()
        if "draining broker hands over" in text
    }

    assert found == {("how-to/operations/", "Take a broker out of service for good")}


def test_what_is_not_for_readers_is_not_in_the_site(index: dict[str, dict[str, str]]) -> None:
    """Notes for the changelog exist and are not in the site."""
    found = [page for page in index if page.startswith("changes/")]

    assert (checkout.ROOT / "docs/changes/README.md").exists()
    assert found == []
