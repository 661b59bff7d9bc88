"""Tests of this folder run real processes for long, alone; those with etcd build it first.

Most of them are left out of a run of everything, which would take twice as long: `make chaos CHAOS=--scenarios` and
a selection that names this folder run all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them: they load the whole machine. Leave the long ones out, unless this folder was asked for."""
    here = [item for item in items if item.path.is_relative_to(FOLDER)]
    for item in here:
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.serial)
    if any(Path(name.split("::")[0]).resolve().is_relative_to(FOLDER) for name in config.args):
        return
    left_out = [item for item in here if item.get_closest_marker("scenario")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
