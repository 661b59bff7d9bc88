"""Figures of a test that `make prove` writes down."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def keep_figures(figures: dict[str, Any]) -> None:
    """Leave them where `make prove` looks for them, if it is what runs."""
    if place := os.environ.get("FAIRLEAD_FIGURES"):
        Path(place).write_text(json.dumps(figures))
