"""`fairlead completion`: the script that completes commands and options in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Which shell.")]) -> None:
    """Print the script that completes commands and options in a shell.

    Example: fairlead completion bash >> ~/.bashrc

    Example: fairlead completion zsh >> ~/.zshrc

    Example: fairlead completion fish > ~/.config/fish/completions/fairlead.fish
    """
    from typer._completion_shared import get_completion_script

    from fairlead.cli.main import COMPLETE_VARIABLE

    typer.echo(get_completion_script(prog_name="fairlead", complete_var=COMPLETE_VARIABLE, shell=shell.value))
