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


def test_a_definition_that_differs_or_lacks_is_named(tmp_path: Path) -> None:
    """The check, which `make check` runs, names each changed or missing definition."""
    assert generate("--into", str(tmp_path / "crds")).returncode == 0
    (tmp_path / "crds" / CLUSTERS).write_text("edited by hand")
    (tmp_path / "crds/topics.fairlead.dev.yaml").unlink()
    checked = generate("--check", "--into", str(tmp_path / "crds"))

    assert checked.returncode == 1
    assert f"{CLUSTERS} is not current" in checked.stderr
    assert "topics.fairlead.dev.yaml is not current" in checked.stderr
