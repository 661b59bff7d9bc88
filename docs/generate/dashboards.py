"""Write Grafana's boards into the operator's chart, or check that they are current.

    python docs/generate/dashboards.py [--check] [--into DIRECTORY]

With `--check` nothing is written: files that differ, lack or should not exist are named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from boards.catalogue import BOARDS
from boards.drawing import text_of

FOLDER = Path(__file__).resolve().parents[2] / "charts/fairlead-operator/dashboards"


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is not current")
    parser.add_argument("--into", type=Path, default=FOLDER, help="folder of the boards")
    options = parser.parse_args(arguments)
    files = {f"fairlead-{board.name}.json": text_of(board) for board in BOARDS}
    stale = [name for name, text in files.items() if not _is(options.into / name, text)]
    superfluous = [path.name for path in sorted(options.into.glob("*.json")) if path.name not in files]
    if options.check:
        for name in stale + superfluous:
            print(f"{options.into / name} is not current", file=sys.stderr)
        if stale or superfluous:
            print("run: python docs/generate/dashboards.py", file=sys.stderr)
        return 1 if stale or superfluous else 0
    options.into.mkdir(parents=True, exist_ok=True)
    for name in superfluous:
        (options.into / name).unlink()
    for name in stale:
        (options.into / name).write_text(files[name], encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
