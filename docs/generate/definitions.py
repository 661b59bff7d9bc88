"""Write the custom resource definitions, which are generated from the models, or check that the files are current.

    python docs/generate/definitions.py [--check] [--into DIRECTORY]

With `--check`, no file is written: files that differ or are missing are printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairlead_operator.schema.definitions import DEFINITIONS

FOLDER = Path(__file__).resolve().parents[2] / "manifests/crds"


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is not current")
    parser.add_argument("--into", type=Path, default=FOLDER, help="folder of the definitions")
    options = parser.parse_args(arguments)
    files = {f"{definition.name}.yaml": definition.text() for definition in DEFINITIONS}
    stale = [name for name, text in files.items() if not _is(options.into / name, text)]
    if options.check:
        for name in stale:
            print(f"{options.into / name} is not current", file=sys.stderr)
        if stale:
            print("run: python docs/generate/definitions.py", file=sys.stderr)
        return 1 if stale else 0
    options.into.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (options.into / name).write_text(files[name], encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
