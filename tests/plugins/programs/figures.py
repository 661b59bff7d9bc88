"""Figures that tests report for the record of `make prove`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FIGURES_VARIABLE: Final = "FAIRLEAD_FIGURES"
"""Environment variable with the path of the file in which `make prove` collects the figures."""


def keep_figures(figures: Mapping[str, Any]) -> None:
    """Add figures to the file of `make prove`, if `make prove` runs the test."""
    if place := os.environ.get(FIGURES_VARIABLE):
        path = Path(place)
        kept = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**kept, **figures}))


def record(name: str, figures: Mapping[str, Any]) -> None:
    """Add the figures of one measurement under its name."""
    keep_figures({name: dict(figures)})
