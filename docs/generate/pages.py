"""Write the reference pages, which are generated from the catalogues in the code, or check that they are current.

    python docs/generate/pages.py [--check] [--into DIRECTORY]

With `--check`, no page is written: pages that differ, are missing or should not exist are printed, and the exit code is
1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import broker_settings
import command_line
import conditions
import configuration
import custom_resources
import diagrams
import http_routes
import kafka_apis
import limits
import metrics
import problems
import sdk
import spark_options
from records import kafka_programs, proof_records

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is not current")
    parser.add_argument("--into", type=Path, default=REFERENCE, help="folder of the reference pages")
    options = parser.parse_args(arguments)
    pages = reference_pages()
    if options.check:
        return check(pages, options.into)
    write(pages, options.into)
    return 0


def reference_pages() -> dict[str, str]:
    """Return the text of every generated page by its path under the reference folder."""
    return {
        **problems.pages(),
        **broker_settings.pages(),
        **command_line.pages(),
        **conditions.pages(),
        **configuration.pages(),
        **custom_resources.pages(),
        **diagrams.pages(),
        **http_routes.pages(),
        **kafka_apis.pages(),
        **kafka_programs.pages(),
        **limits.pages(),
        **metrics.pages(),
        **proof_records.pages(),
        **sdk.pages(),
        **spark_options.pages(),
    }


def write(pages: dict[str, str], folder: Path) -> None:
    """Write the pages, and remove the pages of problems that no longer exist."""
    for name in superfluous(pages, folder):
        (folder / name).unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def check(pages: dict[str, str], folder: Path) -> int:
    """Print the name of every page that is not current; return the exit code."""
    stale = [name for name, text in pages.items() if not _is(folder / name, text)]
    stale += superfluous(pages, folder)
    for name in stale:
        print(f"{folder / name} is not current", file=sys.stderr)
    if stale:
        print("run: python docs/generate/pages.py", file=sys.stderr)
    return 1 if stale else 0


def superfluous(pages: dict[str, str], folder: Path) -> list[str]:
    """Return the pages of problems that are not in the catalogue."""
    found = sorted(folder.glob("problems/*.md"))
    return [name for name in (f"problems/{path.name}" for path in found) if name not in pages]


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
