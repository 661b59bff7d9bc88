"""The code respects the layers of ARCHITECTURE.md, which import-linter checks, and the contract is fast to import."""

from __future__ import annotations

import subprocess
import sys

import checkout

# Modules that store batches as Arrow data, the only modules of the contract that may load Arrow.
ARROW_MODULES = frozenset(
    f"fairlead_api.batch.{name}"
    for name in ("arrow_message", "batches", "columns", "partitioning", "rewritten_batches", "validation")
)
LIGHT_MODULES = sorted(
    {
        ".".join(path.relative_to("api").with_suffix("").parts)
        for path in checkout.python_files("api")
        if path.stem != "__init__"
    }
    - ARROW_MODULES
)


def test_every_contract_of_the_layers_is_kept() -> None:
    """Import-linter finds no forbidden import, for example of joserfc outside one module (rule A19)."""
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    ]
    answer = subprocess.run(
        [*command, "--no-logo", "--no-cache"], cwd=checkout.ROOT, capture_output=True, text=True, check=False
    )

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0 broken" in answer.stdout


def loaded_by(names: list[str], heavy: str) -> subprocess.CompletedProcess[str]:
    """Import modules one after another in a fresh process, and fail at the first module that loads `heavy`."""
    program = "import sys, importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    program += f"    assert {heavy!r} not in sys.modules, name"
    return subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, check=False
    )


def test_the_contract_loads_without_arrow() -> None:
    """The contract loads pyarrow, which costs a tenth of a second, only in modules that store batches."""
    done = loaded_by(["fairlead_api", *LIGHT_MODULES], "pyarrow")

    assert done.returncode == 0, done.stderr


def test_only_the_custom_resources_load_pydantic() -> None:
    """The models of the custom resources load pydantic only in programs that use them."""
    names = [name for name in LIGHT_MODULES if not name.startswith("fairlead_api.resources.")]
    done = loaded_by(["fairlead_api", *names], "pydantic")

    assert done.returncode == 0, done.stderr
