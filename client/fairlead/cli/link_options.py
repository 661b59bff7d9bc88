"""Options and arguments of the commands `fairlead link`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(metavar="LINK", help="The link's name.")]
Topics = Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Mirrors of the link.")]
Rate = Annotated[
    str | None, typer.Option("--rate", metavar="SIZE", help="Maximum bytes per second, such as 50MB.")
]
Factor = Annotated[int | None, typer.Option("--replication-factor", min=1, help="Replicas of each mirror.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--groups", metavar="PATTERN", help="Groups whose offsets are copied; repeatable."),
]
Acls = Annotated[bool, typer.Option("--acls", help="Copy the ACLs on the mirrors and the copied groups.")]
All = Annotated[bool, typer.Option("--all", help="Every mirror of the link.")]
NewSource = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="URL", help="Address of a broker of the same source; repeatable."),
]
NewTopics = Annotated[
    list[str] | None,
    typer.Option("--topics", metavar="PATTERN", help="All patterns of topics; repeatable."),
]
NewExcluded = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="PATTERN", help="All patterns of topics to leave out; repeatable."),
]
NewGroups = Annotated[
    list[str] | None,
    typer.Option("--groups", metavar="PATTERN", help="All patterns of groups; repeatable."),
]


class OnTruncation(StrEnum):
    """Reaction to records that the source lost after they were copied."""

    FOLLOW = "follow"
    STOP = "stop"


class OnExpiry(StrEnum):
    """Reaction to records that expired before they were copied."""

    SKIP = "skip"
    STOP = "stop"


class OnRecreation(StrEnum):
    """Reaction to a topic that was deleted and created again in the source."""

    STOP = "stop"
    REPLACE = "replace"


class LogStart(StrEnum):
    """Log start of mirrors."""

    SOURCE = "source"
    OWN = "own"


_TRUNCATION = typer.Option("--on-truncation", help="What to do if the source loses copied records.")
_EXPIRY = typer.Option("--on-expiry", help="What to do if records expire before they are copied.")
_RECREATION = typer.Option(
    "--on-recreation", help="What to do with the mirror of a topic that is created again."
)
_START = typer.Option(
    "--log-start", help="Whether mirrors delete records with the source, or by their own retention."
)
Truncation = Annotated[OnTruncation, _TRUNCATION]
Expiry = Annotated[OnExpiry, _EXPIRY]
Recreation = Annotated[OnRecreation, _RECREATION]
Start = Annotated[LogStart, _START]
NewTruncation = Annotated[OnTruncation | None, _TRUNCATION]
NewExpiry = Annotated[OnExpiry | None, _EXPIRY]
NewRecreation = Annotated[OnRecreation | None, _RECREATION]
NewStart = Annotated[LogStart | None, _START]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the source without creating the link.")]
