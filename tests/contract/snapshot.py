"""Compare the contract with its golden files, or write them: `python tests/contract/snapshot.py [--write]`.

The golden files in `tests/contract/golden/` list everything that users and clients in other languages can see, or that
is stored on disks and in stores: names, types, defaults, codes and bytes, without sentences. Moving modules, renaming
internal names and rewording do not change the golden files.

A golden file changes only in a commit that changes the contract intentionally. An addition (a call, an option, a
metric) adds lines. A line that is removed or changed breaks existing users: the commit names those users and their next
step, and adds a note in `docs/changes/`. `log_files.json` and the records of `coordination.json` are stored on disks
and in stores: new files may be added, and existing ones must stay readable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# pytest adds these folders to the path through its setting `pythonpath`; a program must add them itself.
FOLDERS: Final = ("plugins", "plugins/brokers", "plugins/programs", "contract")
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in FOLDERS]

import golden
import test_command_line_kept
import test_coordination_kept
import test_http_kept
import test_installation_kept
import test_log_files_kept
import test_metrics_kept
import test_record_batch_kept
import test_sdk_kept
import test_settings_kept

SUBJECTS: Final[dict[str, Callable[[], Any]]] = {
    "charts": test_installation_kept.charts,
    "command_line": test_command_line_kept.command_line,
    "conditions": test_installation_kept.conditions,
    "configuration": test_settings_kept.configuration,
    "coordination": test_coordination_kept.coordination,
    "errors": test_sdk_kept.errors,
    "log_files": test_log_files_kept.log_files,
    "metrics": test_metrics_kept.metrics,
    "openapi": test_http_kept.openapi,
    "package": test_installation_kept.package,
    "peer_messages": test_http_kept.peer_messages,
    "problems": test_http_kept.problems,
    "record_batch": test_record_batch_kept.record_batch,
    "resources": test_installation_kept.resources,
    "routes": test_http_kept.routes,
    "sdk": test_sdk_kept.sdk,
    "settings": test_settings_kept.settings,
    "spark_options": test_settings_kept.spark_options,
    "variables": test_settings_kept.variables,
}
"""Name of each golden file, and the function that describes its subject."""


def main(arguments: list[str]) -> int:
    """Run the program, and return its exit code, which is 1 if a difference was found and not written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the files that differ")
    parser.add_argument("subjects", nargs="*", help="golden files by name; by default all")
    options = parser.parse_args(arguments)
    differing = 0
    for subject in options.subjects or SUBJECTS:
        described = SUBJECTS[subject]()
        lines = golden.differences(subject, described)
        differing += bool(lines)
        print(
            "\n".join(lines)
            if lines and not options.write
            else f"{subject}: {'written' if lines else 'unchanged'}"
        )
        if lines and options.write:
            (golden.FOLDER / f"{subject}.json").write_text(golden.rendered(described), encoding="utf-8")
    return 1 if differing and not options.write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
