"""The programs of docs/how-to/delivery-guarantees.md, unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/delivery-guarantees.md"
PROGRAM: Final = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULT_ADDRESS: Final = "http://127.0.0.1:9520"


def programs() -> dict[str, str]:
    """Return the text of each program by its name."""
    return {found["name"]: found["code"] for found in PROGRAM.finditer(PAGE.read_text(encoding="utf-8"))}


def write_program(name: str, address: str, folder: Path) -> Path:
    """Write a program to a file with its name; only the broker's address is replaced."""
    path = folder / name
    path.write_text(programs()[name].replace(DEFAULT_ADDRESS, address), encoding="utf-8")
    return path
