"""Write the Grafana boards as JSON files into the operator's chart, where they are not tracked by git.

    python docs/generate/dashboards.py [--into DIRECTORY]

The program is run by `make manifests` and by the tests of charts. An unchanged file is not written, and a file without
a board is removed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from boards.catalogue import BOARDS
from boards.drawing import text_of

FOLDER = Path(__file__).resolve().parents[2] / "charts/fairlead-operator/dashboards"


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, default=FOLDER, help="folder of the boards")
    write_boards(parser.parse_args(arguments).into)
    return 0


def write_boards(folder: Path) -> None:
    """Write all boards; several processes may write at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"fairlead-{board.name}.json": text_of(board) for board in BOARDS}
    for path in folder.glob("*.json"):
        if path.name not in texts:
            path.unlink(missing_ok=True)
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            partial = folder / f"{name}.{os.getpid()}"
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
