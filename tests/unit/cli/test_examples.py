"""Every command has an example in its help, and each example is a valid command line of its command."""

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
"""Shell operators. The words of an example after the first operator are not arguments of the command."""


def every_command() -> dict[str, Command]:
    """Return every executable command of the tree by its words, such as `topic create`."""
    root = typer.main.get_command(app)
    groups = {name: root.commands[name] for name in GROUP_HELP}  # type: ignore[attr-defined]
    found = {name: imported(name) for name in COMMANDS} | groups
    return {words: command for name, command in found.items() for words, command in _below(name, command)}


def _below(words: str, command: Command) -> Iterator[tuple[str, Command]]:
    verbs: dict[str, Command] | None = getattr(command, "commands", None)
    if verbs is None:
        key = tuple(words.split())
        yield words, extra_command(*key) if key in EXTRA_VERBS else command
        return
    for name, child in verbs.items():
        yield from _below(f"{words} {name}", child)


COMMAND_TREE = every_command()


def help_lines(words: str) -> list[str]:
    """Return the help of a command at a terminal width of 80 columns."""
    command = COMMAND_TREE[words]
    with command.make_context(f"fairlead {words}", [], resilient_parsing=True, terminal_width=80) as context:
        return command.get_help(context).splitlines()


def examples_of(words: str) -> list[str]:
    """Return the examples in the help of a command, each up to the end of its first line."""
    lines = (line.strip() for line in help_lines(words))
    return [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]


def test_the_tree_is_that_of_the_program() -> None:
    """The tree contains the commands of extras with their real options instead of placeholders."""
    assert {" ".join(key) for key in EXTRA_VERBS} <= COMMAND_TREE.keys()
    assert {"version", "topic create", "bench latency", "profile use"} <= COMMAND_TREE.keys()
    assert all(command.params for command in COMMAND_TREE.values())


@pytest.mark.parametrize("words", sorted(COMMAND_TREE))
def test_the_help_of_every_command_has_an_example_that_it_takes(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example begins with its command, fits on one line so that it can be copied, and parses."""
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
    """An example with an unknown option, a value of the wrong type, or missing or extra words is detected."""
    with pytest.raises(UsageError):
        parse(words, example)


def whole(words: str, example: str) -> bool:
    """Return whether no line of an example was wrapped."""
    lines = [line.strip() for line in help_lines(words)]
    return lines[lines.index(MARK + example) + 1] == ""


def parse(words: str, example: str) -> None:
    """Parse the words of an example with its command, without executing it.

    Raises: UsageError: an option is unknown, a value has a wrong type, or an argument is missing.
    """
    typed = shlex.split(example)[1 + len(words.split()) :]
    ends = [at for at, word in enumerate(typed) if word in SHELL_SIGNS]
    arguments = typed[: ends[0]] if ends else typed
    with COMMAND_TREE[words].make_context(f"fairlead {words}", arguments):
        pass
