"""The command line as scripts use it: commands, options, arguments, defaults and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer

import golden
from fairlead.cli.main import COMMANDS, EXTRA_VERBS, GROUP_HELP, app, extra_command, imported
from fairlead.cli.session import ExitCode, run
from fairlead.errors import (
    DeliveryTimeoutError,
    FairleadError,
    SettingError,
    UnreachableError,
    error_of,
)
from fairlead_api.problems import CATALOGUE, ProblemError, SideEffect


def command_line() -> Any:
    """Describe every command, including those of optional packages, and the exit codes."""
    root: Any = typer.main.get_command(app)
    commands = {"fairlead": [_parameter(each) for each in root.params]}
    for name in COMMANDS:
        commands |= dict(_walk(imported(name), (name,)))
    for name in GROUP_HELP:
        commands |= dict(_walk(root.commands[name], (name,)))
    return {
        "commands": commands,
        "exit_codes": {each.name.lower(): each.value for each in ExitCode},
        "exit_codes_of_problems": {
            code: _exit_code(error_of(ProblemError(code, ""), subject="call")) for code in CATALOGUE
        },
        "exit_codes_of_errors": {type(error).__name__: _exit_code(error) for error in _errors()},
    }


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is not None:
        yield " ".join(words), [_parameter(each) for each in command.params]
        for name, verb in below.items():
            yield from _walk(verb, (*words, name))
        return
    real: Any = extra_command(*words) if words in EXTRA_VERBS else command
    yield " ".join(words), [_parameter(each) for each in real.params if each.name != "help"]


def _parameter(each: Any) -> Any:
    """Describe the properties that a parameter has. Arguments have no option names, only their name in the usage."""
    is_option = each.param_type_name == "option"
    described = {
        "option": [*each.opts, *each.secondary_opts] if is_option else None,
        "argument": None if is_option else each.metavar or each.name.upper(),
        "type": "flag" if getattr(each, "is_flag", False) else _type(each.type_descriptor.annotation),
        "default": _default(each.default),
        "shown_default": _word(each.show_default),
        "metavar": each.metavar if is_option else None,
        "envvar": each.envvar,
        "range": [each.min, each.max] if (each.min, each.max) != (None, None) else None,
        "required": each.required or None,
        "multiple": getattr(each, "multiple", False) or each.nargs != 1 or None,
        "hidden": getattr(each, "hidden", False) or None,
    }
    return {name: value for name, value in described.items() if value is not None}


def _word(text: Any) -> str | None:
    """Return the default that the help shows, if it is one word. Sentences are not part of the contract."""
    return text if isinstance(text, str) and " " not in text else None


def _type(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [each.value for each in annotation]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case Path():
            return str(value)
        case tuple() | list():
            return [_default(each) for each in value]
        case _:
            assert not callable(value), value
            return value


def _errors() -> list[FairleadError]:
    return [
        UnreachableError("call", {"http://a:1": "refused"}, sent=False),
        DeliveryTimeoutError(
            "call", record_count=1, waited_seconds=1.0, attempts=1, side_effect=SideEffect.NONE
        ),
        SettingError("name", "value", "allowed"),
    ]


def _exit_code(error: FairleadError) -> int:
    """Return the exit code of a command whose request raises an error."""

    async def fail() -> None:
        raise error

    with redirect_stderr(StringIO()), pytest.raises(typer.Exit) as ended:
        run(fail())
    return int(ended.value.exit_code)


def test_the_command_line_is_unchanged() -> None:
    """Commands, options, arguments, defaults, variables and exit codes of the command line are unchanged."""
    golden.assert_unchanged("command_line", command_line())
