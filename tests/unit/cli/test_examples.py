"""The examples in the help: every command has one, and every one is a command line that its command takes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
import typer
from typer._click.exceptions import UsageError

from fairlead.cli.main import COMMANDS, EXTRA_VERBS, GROUP_HELP, app, extra_command, imported
from fairlead.cli.options import BOOTSTRAP_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer._click.core import Command

MARK = "Example: "
SHELL_SIGNS = {"<", ">", ">>", "|"}
"""What follows one of these in an example is the business of the shell."""


def every_command() -> dict[str, Command]:
    """Every command of the tree that does something itself, by its words."""
    root = typer.main.get_command(app)
    groups = {name: root.commands[name] for name in GROUP_HELP}  # type: ignore[attr-defined]
    found = {name: imported(name) for name in COMMANDS} | groups
    return {words: command for name, command in found.items() for words, command in _below(name, command)}


def _below(words: str, command: Command) -> Iterator[tuple[str, Command]]:
    verbs: dict[str, Command] | None = getattr(command, "commands", None)
    if verbs is None:
        group, _, verb = words.partition(" ")
        yield words, extra_command(group, verb) if (group, verb) in EXTRA_VERBS else command
        return
    for name, child in verbs.items():
        yield from _below(f"{words} {name}", child)


COMMAND_TREE = every_command()


def help_lines(words: str) -> list[str]:
    """The help of a command, as a terminal of 80 columns shows it."""
    command = COMMAND_TREE[words]
    with command.make_context(f"fairlead {words}", [], resilient_parsing=True, terminal_width=80) as context:
        return command.get_help(context).splitlines()


def examples_of(words: str) -> list[str]:
    """The examples in the help of a command, each as far as it stands in one line."""
    lines = (line.strip() for line in help_lines(words))
    return [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]


def test_the_tree_is_that_of_the_program() -> None:
    """Verbs of extras are there with options of their own, and nothing stands for a command that is not one."""
    assert {f"{group} {verb}" for group, verb in EXTRA_VERBS} <= COMMAND_TREE.keys()
    assert {"version", "topic create", "bench latency", "profile use"} <= COMMAND_TREE.keys()
    assert all(command.params for command in COMMAND_TREE.values())


@pytest.mark.parametrize("words", sorted(COMMAND_TREE))
def test_the_help_of_every_command_has_an_example_that_it_takes(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins with the command itself, stands whole in one line to be copied, and is parsed without a fault."""
    monkeypatch.setenv("FAIRLEAD_BOOTSTRAP", BOOTSTRAP_DEFAULT)
    examples = examples_of(words)

    assert examples
    for example in examples:
        assert example.startswith(f"fairlead {words}")
        assert whole(words, example)
        parse(words, example)


@pytest.mark.parametrize(
    ("words", "example"),
    [
        ("topic create", "fairlead topic create orders --no-such-option 3"),
        ("topic create", "fairlead topic create orders -p many"),
        ("topic trim", "fairlead topic trim orders --partition 0"),
        ("broker start", "fairlead broker start --output yaml"),
        ("version", "fairlead version now"),
    ],
)
def test_an_example_that_its_command_would_refuse_is_found(words: str, example: str) -> None:
    """An option that is not there, a value of another type, and what is missing or too much."""
    with pytest.raises(UsageError):
        parse(words, example)


def whole(words: str, example: str) -> bool:
    """Whether nothing of an example was wrapped into the next line."""
    lines = [line.strip() for line in help_lines(words)]
    return lines[lines.index(MARK + example) + 1] == ""


def parse(words: str, example: str) -> None:
    """Have the command take the words of an example apart, and do nothing.

    Raises:
        UsageError: an option is not known, a value is not of its type, or something is missing.
    """
    typed = shlex.split(example)[1 + len(words.split()) :]
    ends = [at for at, word in enumerate(typed) if word in SHELL_SIGNS]
    arguments = typed[: ends[0]] if ends else typed
    with COMMAND_TREE[words].make_context(f"fairlead {words}", arguments):
        pass
