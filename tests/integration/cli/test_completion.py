"""Shell completion for a user who installs the script as described in the help and presses Tab in the shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from command_line_kit import CommandLine
from tmux_terminal import TmuxTerminal, tmux_terminals

SHELLS = {
    "bash": "",
    # zsh completes nothing without this line, which the start file of a new zsh user contains.
    "zsh": "autoload -Uz compinit && compinit\n",
}
"""The content of the shell's start file before the script is installed."""


@pytest.fixture
def home(shell_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with a new home directory, in which no shell has run yet."""
    (tmp_path / ".config/fish/completions").mkdir(parents=True)
    return {"PATH": shell_environment["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}


def test_the_script_of_each_shell_and_of_no_other(fairlead: CommandLine) -> None:
    """A completion script is printed for each supported shell, and another shell is refused."""
    for shell in ("bash", "zsh", "fish"):
        assert "_FAIRLEAD_COMPLETE" in fairlead("completion", shell)
    fairlead("completion", "csh", code=2)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes(fairlead: CommandLine, home: dict[str, str], tmp_path: Path, shell: str) -> None:
    """Tab completes commands, options and values, including those of optional packages."""
    (tmp_path / f".{shell}rc").write_text(SHELLS[shell], encoding="utf-8")
    with tmux_terminals(tmp_path, home, "user") as [user]:
        installed = user.run(way_to_install(fairlead, shell))
        user.press(shell, "Enter")

        assert "ended with 0" in installed
        tab_makes(user, "fairlead topic des", "fairlead topic describe")
        tab_makes(user, "fairlead broker start --rac", "fairlead broker start --rack")
        tab_makes(user, "fairlead produce orders --compression zs", "--compression zstd")


@pytest.mark.scenario
@pytest.mark.slow
def test_fish_completes(fairlead: CommandLine, home: dict[str, str]) -> None:
    """The fish shell finds the completion script by itself and offers the same words as Tab, with their help."""
    asked = ["fairlead topic des", "fairlead broker start --rac", "fairlead produce orders --compression zs"]
    lines = [way_to_install(fairlead, "fish"), *(f"complete -C '{line}'" for line in asked)]
    done = subprocess.run(
        ["fish", "-c", "\n".join(lines)], env=home, capture_output=True, text=True, check=True, timeout=120
    )

    offered = [line.split("\t") for line in done.stdout.splitlines()]
    assert [value for value, *_ in offered] == ["describe", "--rack", "zstd"], done.stderr
    assert offered[1][1] == "Rack or zone of this broker."


def way_to_install(fairlead: CommandLine, shell: str) -> str:
    """Return the command that the help gives for a shell."""
    [command] = re.findall(rf"Example: (fairlead completion {shell} .+)", fairlead("completion", "--help"))
    return str(command)


def tab_makes(user: TmuxTerminal, typed: str, expected: str) -> None:
    """Type a line on an empty screen, press Tab and wait for the expected line, without running it."""
    _empty_screen(user)
    user.press(typed)
    user.wait_for(typed, timeout_seconds=20)
    user.press("Tab")
    user.wait_for(expected, timeout_seconds=20)
    user.press("C-u")


def _empty_screen(user: TmuxTerminal) -> None:
    # The word is split, so that only printed output contains the whole word.
    user.press("clear; echo re''ady", "Enter")
    user.wait_for("ready")
