"""The rules and boards of the checkout, as Prometheus and Grafana read them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

import checkout

sys.path.append(str(checkout.ROOT / "docs/generate"))


CHART: Final = checkout.ROOT / "charts/fairlead-operator"
RULE_FILES: Final = tuple(sorted((CHART / "rules").glob("*.yaml")))
BOARDS_WRITER: Final = checkout.ROOT / "docs/generate/dashboards.py"
ALERTS_PAGE: Final = checkout.ROOT / "docs/reference/alerts.md"


@cache
def rules() -> list[dict[str, Any]]:
    """Return every rule of every file."""
    return [
        rule
        for path in RULE_FILES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


@cache
def alerts() -> dict[str, dict[str, Any]]:
    """Return every alert by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


@cache
def boards() -> dict[str, dict[str, Any]]:
    """Return every board by file name, as Grafana reads it."""
    # A separate process, because the library for boards emits deprecation warnings when it is imported.
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(BOARDS_WRITER), "--into", folder], check=True)
        return {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a board that show data."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]
