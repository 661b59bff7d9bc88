"""`fairlead profile`: names for clusters, so that commands need no address."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import typer

from fairlead.cli.options import Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_rows
from fairlead.cli.profiles import Profiles, ProfilesUnreadable, profiles_file
from fairlead.cli.session import ExitCode, fail_usage
from fairlead.errors import SettingError
from fairlead.settings import bootstrap_of

app = typer.Typer(no_args_is_help=True, help="Name clusters, and choose the default cluster of commands.")

ProfileName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")]


def _loaded() -> Profiles:
    try:
        return Profiles.load(profiles_file())
    except ProfilesUnreadable as error:
        fail_usage(str(error))


def _loaded_with(name: str) -> Profiles:
    profiles = _loaded()
    if name not in profiles.bootstraps:
        known = ", ".join(profiles.bootstraps) or "none"
        typer.echo(f"error: there is no profile {name}; there are: {known}", err=True)
        raise typer.Exit(ExitCode.NOT_FOUND)
    return profiles


@app.command("create")
def create(
    name: ProfileName,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", metavar="URL,URL", help="Addresses of one or more brokers.")
    ],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a profile of a cluster, or change its addresses; the first profile becomes the current profile.

    Example: fairlead profile create prod --bootstrap http://fairlead.example:9520
    """
    profiles = _loaded()
    if not name or name.strip() != name or not name.isprintable():
        fail_usage(
            f"a profile name consists of printable characters without surrounding spaces, not {name!r}"
        )
    try:
        bootstrap_of(bootstrap)
    except SettingError as error:
        fail_usage(str(error))
    profiles = profiles.with_profile(name, bootstrap)
    profiles.save(profiles_file())
    used = (
        " and is used" if profiles.current == name else f"; use it with: fairlead profile use {quote(name)}"
    )
    print_done(f"profile {name} is saved in {profiles_file()}{used}", _document(profiles, name), output)


@app.command("use")
def use(name: ProfileName, output: Output = OutputFormat.TABLE) -> None:
    """Make this cluster the default of commands without --bootstrap or FAIRLEAD_BOOTSTRAP.

    Example: fairlead profile use prod
    """
    profiles = _loaded_with(name).using(name)
    profiles.save(profiles_file())
    print_done(f"commands go to {profiles.bootstraps[name]}", _document(profiles, name), output)


@app.command("delete")
def delete(name: ProfileName, output: Output = OutputFormat.TABLE) -> None:
    """Delete a profile.

    The cluster is not affected. Without a current profile, commands connect to a broker on this machine.

    Example: fairlead profile delete prod
    """
    profiles = _loaded_with(name).without(name)
    profiles.save(profiles_file())
    unused = "" if profiles.current else "; no profile is in use now"
    print_done(f"profile {name} is deleted{unused}", {"name": name, "current": profiles.current}, output)


@app.command("list")
def list_profiles(output: Output = OutputFormat.TABLE) -> None:
    """List the profiles; a star marks the profile in use.

    Example: fairlead profile list
    """
    profiles = _loaded()
    if output is OutputFormat.TABLE:
        rows = [
            ("*" if name == profiles.current else "", name, bootstrap)
            for name, bootstrap in profiles.bootstraps.items()
        ]
        print_rows(["", "PROFILE", "BOOTSTRAP"], rows)
        return
    print_document([_document(profiles, name) for name in profiles.bootstraps], output)


def _document(profiles: Profiles, name: str) -> dict[str, str | bool]:
    return {"name": name, "bootstrap": profiles.bootstraps[name], "current": name == profiles.current}
