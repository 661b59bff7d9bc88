"""Options that several commands share.

Every command module imports this module, which must not depend on the commands.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Literal

import typer

from fairlead.cli.profiles import ProfilesUnreadable
from fairlead.cli.session import fail_usage
from fairlead.settings import ONE_ADDRESS_VARIABLE


class OutputFormat(StrEnum):
    """Output format of an answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Encoding(StrEnum):
    """Encoding of keys and values as text."""

    UTF8 = "utf8"
    BASE64 = "base64"
    JSON = "json"


def _given_bootstrap(context: typer.Context, bootstrap: str) -> str:
    """Return the bootstrap addresses; end the command if the addresses depend on unreadable profiles."""
    source = context.get_parameter_source("bootstrap")
    if isinstance(context.obj, ProfilesUnreadable) and source is not None and source.name == "DEFAULT":
        fail_usage(str(context.obj))
    return bootstrap


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="FAIRLEAD_BOOTSTRAP",
        metavar="URL,URL",
        help="Addresses of one or more brokers.",
        callback=_given_bootstrap,
    ),
]
BOOTSTRAP_DEFAULT = "http://127.0.0.1:9520"

ONE_ADDRESS_HELP = (
    "Send every call to --bootstrap; a broker there forwards calls that other brokers must answer."
)


def _use_one_address(value: bool) -> bool:
    if value:
        os.environ[ONE_ADDRESS_VARIABLE] = "true"
    return value


def one_address(
    _one_address: Annotated[
        bool,
        typer.Option(
            "--one-address",
            envvar=ONE_ADDRESS_VARIABLE,
            callback=_use_one_address,
            help=ONE_ADDRESS_HELP,
        ),
    ] = False,
) -> None:
    """Declare the option of every command with `--bootstrap`.

    The option sets the environment variable that the clients read, so that no command needs to pass on the value.
    """


Output = Annotated[OutputFormat, typer.Option("--output", help="Format of the answer.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
IsolationOption = Annotated[
    Literal["read_uncommitted", "read_committed"],
    typer.Option("--isolation", help="read_committed: without records of open and aborted transactions."),
]
EncodingOption = Annotated[
    Encoding,
    typer.Option("--encoding", help="Encoding of keys and values in the text: UTF-8, base64 or JSON."),
]
