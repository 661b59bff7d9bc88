"""Page of the command line: every command with its options, generated from the help texts."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer
from page_text import GENERATED, table

from fairlead.cli.main import COMMANDS, EXTRA_VERBS, GROUP_HELP, app, extra_command, imported

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """# Command line

`fairlead` calls the cluster over HTTP and can run on any machine. Data is written to standard output, and messages to
standard error. If the output is not a terminal, there are no colours and no questions, and the cells of tables are
separated by tabs and not truncated. `--output json` and `--output yaml` are meant for programs.

| exit code | |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | the command line is wrong |
| 3 | not found |
| 4 | refused by the cluster |
| 5 | the cluster cannot be reached |

The address of the cluster is taken from `--bootstrap`, else from `FAIRLEAD_BOOTSTRAP`, else from the profile
(`fairlead profile use`, or `FAIRLEAD_PROFILE`). The default is `http://127.0.0.1:9520`.
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    return {"command-line.md": GENERATED + "\n".join([HEAD, *_sections()]).rstrip() + "\n"}


def _sections() -> Iterator[str]:
    for name in COMMANDS:
        yield from _section(imported(name), f"fairlead {name}")
    root = typer.main.get_command(app)
    for name in GROUP_HELP:
        yield from _section(root.commands[name], f"fairlead {name}")


def _section(command: Any, path: str) -> Iterator[str]:
    verbs = getattr(command, "commands", None)
    if verbs:
        for name, verb in sorted(verbs.items()):
            yield from _section(verb, f"{path} {name}")
        return
    yield f"## {path}\n"
    words = tuple(path.split()[1:])
    extra = EXTRA_VERBS.get(words)
    if extra is not None:
        command = extra_command(*words)
    # The character `\b` before an example only prevents the example from being wrapped in a terminal.
    text, *examples = (command.help or "").replace("\b", "").split("Example: ")
    yield f"{' '.join(text.split())}\n"
    if extra is not None:
        yield f"Comes with `pip install 'fairlead[{extra[0]}]'`.\n"
    if examples:
        lines = "\n".join(" ".join(example.split()) for example in examples)
        yield f"```sh\n{lines}\n```\n"
    rows = [row for parameter in command.params if (row := _row(parameter)) is not None]
    if rows:
        yield table(["argument or option", "default", ""], rows)


def _row(parameter: Any) -> tuple[str, str, str] | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    if parameter.param_type_name == "argument":
        names = parameter.metavar or parameter.name.upper()
    else:
        names = ", ".join(parameter.opts)
        if not parameter.is_flag:
            names += f" {parameter.metavar or _kind(parameter.type_descriptor.annotation)}"
    default = parameter.default
    told = "" if default in (None, False, "", ()) or callable(default) else f"`{default}`"
    if isinstance(getattr(parameter, "show_default", None), str):
        told = parameter.show_default if " " in parameter.show_default else f"`{parameter.show_default}`"
    if parameter.required:
        told = "required"
    text = re.sub(r"\s+", " ", getattr(parameter, "help", None) or "")
    variable = getattr(parameter, "envvar", None)
    if variable:
        text += f" Also `{variable}`."
    return f"`{names}`", told, text


def _kind(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return "|".join(each.value for each in annotation)
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return {int: "INTEGER", float: "NUMBER", Path: "FILE"}.get(annotation, "TEXT")
