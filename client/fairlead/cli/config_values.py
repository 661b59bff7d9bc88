"""The options `-c key=value` and `--unset key` of every command that changes configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fairlead.cli.session import fail_usage

ConfigOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", metavar="KEY=VALUE", help="A setting to change; repeatable."),
]
UnsetOption = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="KEY", help="A setting to reset to its default; repeatable."),
]


def changes(config: Sequence[str] | None, unset: Sequence[str] | None = None) -> dict[str, str | None]:
    """Return the merge patch of both options, with None for keys to unset; end the command if an option is invalid."""
    patch: dict[str, str | None] = {}
    for pair in config or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            fail_usage(f"-c {pair!r} is not of the form key=value")
        patch[key] = value
    for key in unset or ():
        if key in patch:
            fail_usage(f"{key} is both set and unset")
        patch[key] = None
    return patch
