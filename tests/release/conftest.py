"""The distribution of this checkout, built once for all tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from install_kit import build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist and from it the wheel, as a release does, with the build backend that the constraints pin."""
    folder = tmp_path_factory.mktemp("dist")
    build("--sdist", "--wheel", into=folder)
    return next(folder.glob("fairlead-*.whl"))


@pytest.fixture(scope="session")
def sdist(wheel: Path) -> Path:
    """Return the sdist next to the wheel."""
    return next(wheel.parent.glob("fairlead-*.tar.gz"))
