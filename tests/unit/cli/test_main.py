"""The command line as a whole: its imports and its help."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cli.main import COMMANDS, EXTRA_VERBS, buffer_output, imported, run_command

HEAVY = ("pyarrow", "numpy", "pyreqwest", "rich.console", "yaml", "pydantic", "importlib.metadata")
ASKING = [
    "topic",
    "list",
    "--bootstrap",
    "nonsense",
    "--output",
    "json",
]  # a command that parses its settings, then refuses the address


class NarrowPipe(io.RawIOBase):
    """Output that accepts seven bytes in each write, as a full pipe accepts only a part of a text."""

    def __init__(self) -> None:
        self.received = bytearray()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Accept the first seven bytes."""
        part = bytes(data)[:7]
        self.received += part
        return len(part)


def test_output_without_a_buffer_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONUNBUFFERED, texts and bytes are written completely to an output that accepts only parts of them."""
    pipe = NarrowPipe()
    unbuffered = io.TextIOWrapper(pipe, "utf-8", write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stdout", unbuffered)
    buffer_output()
    sys.stdout.write("a longer text\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"records of a topic\n")
    sys.stdout.buffer.flush()

    assert pipe.received == b"a longer text\nrecords of a topic\n"


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["topic", "--help"], ASKING])
def test_a_command_imports_no_more_than_it_uses(arguments: list[str]) -> None:
    """A command imports Arrow, the terminal library and the HTTP client only if it uses them."""
    used = {"topic": "pyreqwest", "version": "importlib.metadata"}.get(arguments[0])
    heavy = [name for name in HEAVY if name != used]
    program = (
        "import sys\n"
        "from fairlead.cli.main import run_command\n"
        f"run_command({arguments!r})\n"
        f"print('imported', [name for name in {heavy!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "imported []"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        (["broker", "start"], []),
        (["broker", "list"], ["rich"]),
        (["produce", "topic"], ["rich"]),
        (["job", "run"], ["pandas", "rich"]),
    ],
)
def test_libraries_load_no_packages_that_a_process_does_not_need(
    arguments: list[str], loaded: list[str]
) -> None:
    """Arrow imports pandas only in Spark jobs, and the logging library does not import rich in broker processes."""
    program = (
        "import sys\n"
        "from fairlead.cli.main import leave_out_packages\n"
        f"leave_out_packages({arguments!r})\n"
        "import pyarrow as pa, structlog\n"
        "print(pa.array([1, 2]).to_pylist(), [name for name in ('pandas', 'rich') if sys.modules.get(name)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == f"[1, 2] {loaded}\n"


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        (["--version"], "fairlead "),
        (["-h"], "Usage: fairlead [OPTIONS] COMMAND"),
        (["topic", "-h"], "Usage: fairlead topic [OPTIONS] COMMAND"),
        (["topic", "create", "-h"], "Usage: fairlead topic create "),
        (["dev", "up", "-h"], "Usage: fairlead dev up "),
    ],
)
def test_version_and_help_are_found_where_others_have_them(
    arguments: list[str], begin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program has the option `--version`, and every command has the help option `-h`."""
    assert run_command(arguments) == 0
    assert capsys.readouterr().out.startswith(begin)


@pytest.mark.parametrize(("completing", "code", "said"), [(True, 0, False), (False, 2, True)])
def test_a_verb_of_an_extra_that_is_missing(completing: bool, code: int, said: bool) -> None:
    """A command of a missing extra is refused when called, but prints no error during shell completion."""
    program = (
        "import importlib.metadata, sys\n"
        "import fairlead.cli.main as main\n"
        "importlib.metadata.entry_points = lambda **_: ()\n"  # simulates an installation without extras
        "sys.argv = ['fairlead', 'broker', 'start']\n"
        "main.main()\n"
    )
    words = {
        "_FAIRLEAD_COMPLETE": "complete_bash",
        "COMP_WORDS": "fairlead broker start --",
        "COMP_CWORD": "3",
    }
    environment = os.environ | (words if completing else {})
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )

    assert done.returncode == code, done
    assert ("pip install 'fairlead[broker]'" in done.stderr) == said
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_is_what_its_module_says(name: str) -> None:
    """The summary in the list of commands equals the docstring of the command's module."""
    command = imported(name)

    assert COMMANDS[name] == (command.help or "").split("\n\n")[0].replace("\n", " ").strip()


def verbs(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, child in below.items():
        yield from verbs(child, f"{path} {name}")


def test_every_answer_has_forms_for_programs() -> None:
    """Every command has `--output`, except the completion scripts of shells and the commands of extras."""
    found = {path: verb for name in COMMANDS for path, verb in verbs(imported(name), name)}
    without = {
        path
        for path, verb in found.items()
        if tuple(path.split()) not in EXTRA_VERBS and not any("--output" in each.opts for each in verb.params)
    }

    assert without == {"completion"}
