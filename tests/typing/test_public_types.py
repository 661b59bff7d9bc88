"""Four type checkers accept correct programs that use the SDK, and report an error on each incorrect line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PROGRAMS = ("async_clients.py", "blocking_clients.py", "errors.py")
WRONG = "wrong.py"
CHECKERS = {
    # A separate configuration, because the rules of users' type checkers differ from those of this project.
    "mypy": ("mypy", "--strict", "--config-file=", "--python-executable", sys.executable),
    "basedpyright": ("basedpyright", "--level", "error", "--outputjson", "--pythonpath", sys.executable),
    "pyrefly": (
        "pyrefly",
        "check",
        "--preset",
        "strict",
        "--output-format",
        "min-text",
        "--python-interpreter-path",
        sys.executable,
    ),
    "ty": ("ty", "check", "--output-format", "concise", "--python", sys.executable),
}
PLACE = re.compile(r"(\w+\.py):(\d+)(?::[\d-]+)*: error|ERROR (\w+\.py):(\d+):")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return the folder of programs, outside the checkout and its configuration, as a user has them."""
    for name in (*PROGRAMS, WRONG):
        (tmp_path / name).write_bytes((HERE / name).read_bytes())
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    return tmp_path


def check(checker: str, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Run a checker over programs."""
    command, *arguments = CHECKERS[checker]
    return subprocess.run(
        [str(BIN / command), *arguments, *names], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_programs_pass_and_wrong_lines_are_refused(checker: str, programs: Path) -> None:
    """Checkers report an error exactly on the marked lines, so types reach a checker, and every `assert_type` holds."""
    marked = {
        (WRONG, number)
        for number, line in enumerate((programs / WRONG).read_text().splitlines(), 1)
        if line.endswith("# WRONG")
    }
    done = check(checker, programs, *PROGRAMS, WRONG)

    assert done.returncode == 1, done.stdout + done.stderr
    assert refused(checker, done.stdout) == marked


def refused(checker: str, printed: str) -> set[tuple[str, int]]:
    """Return the file and the number of each line that a checker reports as an error."""
    if checker == "basedpyright":
        found = json.loads(printed)["generalDiagnostics"]
        return {
            (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
            for each in found
            if each["severity"] == "error"
        }
    places = (tuple(filter(None, match.groups())) for match in PLACE.finditer(printed))
    return {(name, int(number)) for name, number in places}
