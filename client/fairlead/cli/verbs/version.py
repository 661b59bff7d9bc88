"""`fairlead version`: the release of this program."""

from __future__ import annotations

from importlib.metadata import version as release_of

import typer

from fairlead.cli.options import Output, OutputFormat
from fairlead.cli.printing import print_document


def version(output: Output = OutputFormat.TABLE) -> None:
    """Print the release of this program.

    Example: fairlead version --output json
    """
    release = release_of("fairlead")
    if output is OutputFormat.TABLE:
        typer.echo(f"fairlead {release}")
    else:
        print_document({"release": release}, output)
