from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import checkout

GENERATOR = checkout.ROOT / "docs/generate/definitions.py"
CLUSTERS = "clusters.fairlead.dev.yaml"


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the generator as `make check` does."""
    return subprocess.run(
        [sys.executable, str(GENERATOR), *arguments], capture_output=True, text=True, check=False
    )


def test_the_committed_definitions_are_those_of_the_models() -> None:
    """The committed definitions equal the generator's output for the models."""
    checked = generate("--check")

    assert checked.stderr == ""
    assert checked.returncode == 0


def test_a_definition_that_differs_or_lacks_is_named(tmp_path: Path) -> None:
    """The check names each changed or missing definition, and passes after the files are written again."""
    assert generate("--into", str(tmp_path / "crds")).returncode == 0
    (tmp_path / "crds" / CLUSTERS).write_text("edited by hand")
    (tmp_path / "crds/topics.fairlead.dev.yaml").unlink()
    checked = generate("--check", "--into", str(tmp_path / "crds"))
    mended = generate("--into", str(tmp_path / "crds")), generate("--check", "--into", str(tmp_path / "crds"))

    assert checked.returncode == 1
    assert f"{CLUSTERS} is not current" in checked.stderr
    assert "topics.fairlead.dev.yaml is not current" in checked.stderr
    assert [run.returncode for run in mended] == [0, 0]
