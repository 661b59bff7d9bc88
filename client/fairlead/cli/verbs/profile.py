"""`fairlead profile`: names for clusters, so that commands need no address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from fairlead.cli.options import ONE_ADDRESS_HELP, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_rows
from fairlead.cli.profiles import Profile, Profiles, ProfilesUnreadable, profiles_file
from fairlead.cli.session import ExitCode, fail_usage
from fairlead.credentials import words_of
from fairlead.errors import SettingError
from fairlead.settings import bootstrap_of
from fairlead.tls_files import TlsFiles

app = typer.Typer(no_args_is_help=True, help="Name clusters, and choose the default cluster of commands.")

ProfileName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")]


def _loaded() -> Profiles:
    try:
        return Profiles.load(profiles_file())
    except ProfilesUnreadable as error:
        fail_usage(str(error))


def _loaded_with(name: str) -> Profiles:
    profiles = _loaded()
    if name not in profiles.profiles:
        known = ", ".join(profiles.profiles) or "none"
        typer.echo(f"error: there is no profile {name}; existing profiles: {known}", err=True)
        raise typer.Exit(ExitCode.NOT_FOUND)
    return profiles


@app.command("create")
def create(
    name: ProfileName,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", metavar="URL,URL", help="Addresses of one or more brokers.")
    ],
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that names you to the cluster.")
    ] = None,
    token_command: Annotated[
        str | None,
        typer.Option(help="Program that prints the token, run without a shell when a token is needed."),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help="PEM file with the authorities that sign the brokers' certificates, for https addresses."
        ),
    ] = None,
    client_cert_file: Annotated[
        Path | None, typer.Option(help="PEM file with your certificate, if brokers require one.")
    ] = None,
    client_key_file: Annotated[Path | None, typer.Option(help="Key of --client-cert-file.")] = None,
    one_address: Annotated[
        bool,
        typer.Option("--one-address", help=ONE_ADDRESS_HELP),
    ] = False,
    follow_moves: Annotated[
        bool,
        typer.Option(
            "--follow-moves",
            help="Continue in the other cluster after a topic was handed over to that cluster.",
        ),
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a profile of a cluster, or replace it; the first profile becomes the current profile.

    Example: fairlead profile create prod --bootstrap http://fairlead.example:9520

    Example: fairlead profile create prod --bootstrap https://fairlead.example:9520 --ca-file ca.crt

    Example: fairlead profile create prod --bootstrap https://fairlead.example:9520 --token-file ann.token

    Example: fairlead profile create prod --bootstrap http://node.example:30520 --one-address
    """
    if not name or name.strip() != name or not name.isprintable():
        fail_usage(
            f"a profile name must consist of printable characters without surrounding spaces, not {name!r}"
        )
    files = (token_file, ca_file, client_cert_file, client_key_file)
    profile = replace(
        _checked(bootstrap, files, token_command), one_address=one_address, follow_moves=follow_moves
    )
    profiles = _loaded()
    profiles = profiles.with_profile(name, profile)
    profiles.save(profiles_file())
    used = (
        " and is used" if profiles.current == name else f"; use it with: fairlead profile use {quote(name)}"
    )
    print_done(f"profile {name} is saved in {profiles_file()}{used}", _document(profiles, name), output)


def _checked(bootstrap: str, files: Sequence[Path | None], token_command: str | None) -> Profile:
    """Return a profile; end the command if the options contradict each other, or files cannot be used."""
    # Paths are stored as absolute paths, because later commands run in other folders.
    token, ca, cert, key = (None if file is None else file.absolute() for file in files)
    if token is not None and token_command is not None:
        fail_usage("give at most one of --token-file and --token-command")
    if token_command is not None and not words_of(token_command):
        fail_usage("--token-command needs a program, optionally with arguments")
    if (cert is None) != (key is None):
        fail_usage("--client-cert-file and --client-key-file must be given together")
    try:
        bootstrap_of(bootstrap)
        TlsFiles(ca, cert, key).read()
    except SettingError as error:
        fail_usage(str(error))
    token_path, ca_path, cert_path, key_path = (
        None if file is None else str(file) for file in (token, ca, cert, key)
    )
    return Profile(bootstrap, token_path, token_command, ca_path, cert_path, key_path)


@app.command("use")
def use(name: ProfileName, output: Output = OutputFormat.TABLE) -> None:
    """Make this cluster the default of commands without --bootstrap or FAIRLEAD_BOOTSTRAP.

    Example: fairlead profile use prod
    """
    profiles = _loaded_with(name).using(name)
    profiles.save(profiles_file())
    print_done(f"commands go to {profiles.profiles[name].bootstrap}", _document(profiles, name), output)


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
            ("*" if name == profiles.current else "", name, profile.bootstrap)
            for name, profile in profiles.profiles.items()
        ]
        print_rows(["", "PROFILE", "BOOTSTRAP"], rows)
        return
    print_document([_document(profiles, name) for name in profiles.profiles], output)


def _document(profiles: Profiles, name: str) -> dict[str, str | bool]:
    return {"name": name, **profiles.profiles[name].values(), "current": name == profiles.current}
