"""The `fairlead` program with all its commands.

Commands are imported when they are called: `fairlead version` and the help need neither Arrow nor HTTP. Verbs that need
an extra (`broker start`, `dev up`) are found through the entry-point group `fairlead.commands`, so that the base
install needs no server.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.core import TyperGroup

from fairlead.cli.options import one_address
from fairlead.cli.plain_values import accept_plain_values
from fairlead.cli.profiles import ProfilesUnreadable, apply_profile
from fairlead.cli.session import ExitCode, fail_usage

if TYPE_CHECKING:
    from typer._click.core import Command, Context

COMPLETE_VARIABLE = "_FAIRLEAD_COMPLETE"
"""Environment variable that a shell's completion script sets to request completions."""
ENTRY_POINT_GROUP = "fairlead.commands"
BROKER_COMMANDS = {("broker", "start"), ("dev", "up")}
HELP_OPTIONS = ["--help", "-h"]
# Extra and help of each command and verb that is not in the base install; the help is shown without loading the extra.
EXTRA_VERBS: dict[tuple[str, ...], tuple[str, str]] = {
    ("broker", "start"): ("broker", "Run one broker."),
    ("broker", "prepare-stop"): (
        "broker",
        "Wait until the cluster can run without this broker: the preStop hook of a pod.",
    ),
    ("cluster", "move-coordination"): (
        "broker",
        "Move the coordination of a single broker from its data directory to etcd.",
    ),
    ("console",): ("console", "See and steer a cluster in a browser."),
    ("dev", "up"): ("broker", "Run a whole local cluster in one process."),
    ("job", "info"): ("spark", "Print the versions that jobs need, and why Spark cannot use a format."),
    ("job", "list"): ("spark", "List the pipelines that can be run, or the options of one."),
    ("job", "run"): ("spark", "Run a pipeline on Spark until all its input is processed, or until Ctrl-C."),
    ("operator", "start"): ("operator", "Run the Kubernetes operator until it is stopped."),
}
GROUP_HELP = {
    "dev": "Local clusters for development.",
    "job": "Pipelines on Spark.",
    "operator": "The Kubernetes operator.",
}
"""Help of the command groups whose verbs all belong to an extra."""

# Help of each command, equal to the help in the command's module; the help is shown without importing the module.
COMMANDS = {
    "produce": "Write records: one per line of standard input, or one per row of --file.",
    "consume": "Print the records of a topic as they arrive, one value per line; Ctrl-C stops.",
    "version": "Print the release of this program.",
    "topic": "Create, list, describe, change and delete topics.",
    "group": "List, describe, measure, reset and delete consumer groups.",
    "transaction": "List, describe and abort transactions of producers.",
    "broker": "Run, inspect, cordon and drain brokers.",
    "partition": "Move partitions, elect leaders, clean logs, accept damage.",
    "cluster": "Inspect and configure the cluster.",
    "console": "See and steer a cluster in a browser.",
    "token": "Create, list and revoke API tokens.",
    "user": "Create users with a token and ACLs, list and delete them.",
    "acl": "Allow and deny operations, and explain decisions.",
    "quota": "Limit what callers may use.",
    "link": "Mirror topics of another cluster.",
    "security": "Show and change the security mode.",
    "whoami": "Show the principal of your token, and the security mode of the cluster.",
    "bench": "Measure producing, consuming and latency on a topic.",
    "top": "Watch the rates of topics and the lag of groups; Ctrl-C stops.",
    "profile": "Name clusters, and choose the default cluster of commands.",
    "completion": "Print the script that completes commands and options in a shell.",
}


class LazyCommands(TyperGroup):
    """Command group that imports a command when the command is called.

    Until a command is called, only its name and help are known.
    """

    def resolve_command(
        self, context: Context, arguments: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Find and import the command."""
        name, command, rest = super().resolve_command(context, arguments)
        if name not in COMMANDS:
            return name, command, rest
        try:
            return name, imported(name), rest
        except MissingExtraError as missing:
            return name, _unless_called(context, command, missing), rest


class MissingExtraError(Exception):
    """The extra that contains a verb is not installed; the message names the extra."""


class LazyVerbs(TyperGroup):
    """Command group that imports a verb from an extra when the verb is called.

    Until a verb is called, only its name and help are known.
    """

    def resolve_command(
        self, context: Context, arguments: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Find and import the verb."""
        name, command, rest = super().resolve_command(context, arguments)
        key = (context.info_name or "", name or "")
        if key not in EXTRA_VERBS:
            return name, command, rest
        try:
            return name, extra_command(*key), rest
        except MissingExtraError as missing:
            return name, _unless_called(context, command, missing), rest


def _unless_called(context: Context, command: Command | None, missing: MissingExtraError) -> Command | None:
    """Report a missing extra, except during shell completion: the command reports the extra when it is called."""
    if not context.resilient_parsing:
        fail_usage(str(missing))
    return command


@cache
def imported(name: str) -> Command:
    """Import the module of a command and return the command of that name, or the module's group `app`.

    Raises `MissingExtraError` for a command of an extra that is not installed.
    """
    if (name,) in EXTRA_VERBS:
        return extra_command(name)
    module = import_module(f"fairlead.cli.verbs.{name}")
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    holder.callback()(lambda: None)
    if hasattr(module, "app"):
        _add_extra_verbs(module.app, name)
        holder.add_typer(module.app, name=name, cls=LazyVerbs)
    else:
        holder.command(name)(getattr(module, name))
    group = typer.main.get_command(holder)
    assert isinstance(group, TyperGroup), "typer returns a group for an app with a callback"
    return _with_help(group.commands[name])


def extra_command(*words: str) -> Command:
    """Import a command or verb from an extra and return the command. Raises `MissingExtraError`."""
    extra, _ = EXTRA_VERBS[words]
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    holder.command()(_loaded(words, extra))
    return _with_help(typer.main.get_command(holder))


def _with_help(command: Command) -> Command:
    """Add the options of all commands, and keep each example on one line, so that users can copy the example.

    Paragraphs other than examples are wrapped.
    """
    _add_one_address(command)
    command.context_settings["help_option_names"] = HELP_OPTIONS
    if command.help is not None:
        command.help = command.help.replace("\n\nExample: ", "\n\n\b\nExample: ")
    if isinstance(command, TyperGroup):
        for verb in command.commands.values():
            _with_help(verb)
    return command


def _add_one_address(command: Command) -> None:
    """Add `--one-address` after the `--bootstrap` of a command that calls the cluster."""
    names = [parameter.name for parameter in command.params]
    if "bootstrap" in names and "one_address" not in names:
        holder = typer.Typer(add_completion=False)
        holder.command()(one_address)
        [option, *_] = typer.main.get_command(holder).params
        option.expose_value = False
        command.params.insert(names.index("bootstrap") + 1, option)


accept_plain_values()

app = typer.Typer(
    cls=LazyCommands,
    name="fairlead",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP_OPTIONS},
    help="Fairlead, a distributed commit log: topics, records and clusters from the command line.",
)


def _show_version(asked: bool) -> None:
    if asked:
        import_module("fairlead.cli.verbs.version").version()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="The same as `fairlead version`."
        ),
    ] = False,
) -> None:
    del version  # the callback of the option handles --version


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)


def _add_extra_verbs(group_app: typer.Typer, group: str) -> None:
    for words, (_, text) in EXTRA_VERBS.items():
        if words[0] == group and len(words) > 1:
            group_app.command(words[1], help=text)(lambda: None)


def _loaded(words: tuple[str, ...], extra: str) -> Callable[..., None]:
    # The import takes a tenth of the start-up time of a command.
    from importlib.metadata import entry_points

    hint = f"which comes with: pip install 'fairlead[{extra}]'"
    point = next(iter(entry_points(group=ENTRY_POINT_GROUP, name=".".join(words))), None)
    if point is None:
        message = f"{' '.join(words)} is not installed; it needs the {extra}, {hint}"
        raise MissingExtraError(message)
    try:
        loaded: Callable[..., None] = point.load()
    except ModuleNotFoundError as error:
        message = f"{' '.join(words)} needs {error.name}, {hint}"
        raise MissingExtraError(message) from error
    return loaded


for _name, _help in GROUP_HELP.items():
    _group = typer.Typer(no_args_is_help=True, help=_help)
    _group.callback()(lambda: None)
    _add_extra_verbs(_group, _name)
    app.add_typer(_group, name=_name, cls=LazyVerbs)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line in this process and return an exit code, even after an unexpected error."""
    code: int | str | None = ExitCode.FAILED
    try:
        unreadable = None
        if COMPLETE_VARIABLE in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        elif arguments[:1] != ["profile"]:
            unreadable = _unreadable_profiles(arguments)
        command = typer.main.get_command(app)
        command(args=list(arguments), prog_name="fairlead", complete_var=COMPLETE_VARIABLE, obj=unreadable)
    except ProfilesUnreadable as unreadable:
        typer.echo(f"error: {unreadable}", err=True)
        code = ExitCode.USAGE
    except SystemExit as ended:
        code = ended.code
    except BrokenPipeError:
        # The program that reads the pipe has exited (`fairlead consume ... | head`), which is not an error.
        code = ExitCode.OK
    except OSError as error:
        # The cause may be a full disk to which standard output is redirected: a stack trace would not help the user.
        typer.echo(f"error: {error}", err=True)
        code = ExitCode.FAILED
    except BaseException:  # noqa: BLE001 - the process ends after any error
        traceback.print_exc()
    if isinstance(code, str):
        typer.echo(code, err=True)
        code = ExitCode.FAILED
    return code or ExitCode.OK


def _unreadable_profiles(arguments: Sequence[str]) -> ProfilesUnreadable | None:
    """Use the addresses of the profile for `--bootstrap`; return the error if the profiles cannot be read.

    The option `--bootstrap` reports the error only if the command needs a profile: starting a broker, the help, and a
    command with --bootstrap need none.
    """
    try:
        # The token of a profile is for the cluster of the profile, never for an address of the command line.
        apply_profile(with_token=not any(each.partition("=")[0] == "--bootstrap" for each in arguments))
    except ProfilesUnreadable as unreadable:
        if list(arguments[:2]) == ["job", "run"]:
            # Spark pipelines read the environment variable themselves.
            raise
        return unreadable
    return None


class HiddenPackages:
    """Import finder that hides packages, whether they are installed or not.

    The class does not inherit from `MetaPathFinder`, whose import takes a twentieth of the start-up time of a command.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a hidden package; leave all other modules to other import finders."""
        del path, target
        if fullname in self._names:
            message = f"{fullname} is disabled in this process"
            raise ModuleNotFoundError(message, name=fullname)
        return None


def leave_out_packages(arguments: Sequence[str]) -> None:
    """Prevent libraries from importing packages that they do not need in this process.

    When the first list becomes an Arrow array, Arrow imports pandas to check for a pandas object, which would cost
    every broker and every command half a second and 50 MiB. Spark jobs can still import pandas, because users'
    pipelines may need pandas. The logging library imports rich for tracebacks that a broker does not print, which would
    take an eighth of the start of a broker.
    """
    if arguments[:1] != ["job"]:
        sys.meta_path.insert(
            0, HiddenPackages(("pandas", "rich") if starts_broker(arguments) else ("pandas",))
        )


def pause_collection(arguments: Sequence[str]) -> None:
    """Stop the garbage collection while the modules of a broker are imported; the broker starts it again.

    Nearly all objects that an import creates live until the process ends. Collections during the imports would free
    nothing, and take a sixth of the start of a broker.
    """
    if starts_broker(arguments):
        gc.disable()


def starts_broker(arguments: Sequence[str]) -> bool:
    """Return whether the command runs brokers in this process."""
    return tuple(arguments[:2]) in BROKER_COMMANDS


def calculate_alone(arguments: Sequence[str]) -> None:
    """Prevent numpy from starting threads in this process, which does no linear algebra.

    OpenBLAS starts one thread per core, and the threads spin for a while, which slows down every start by a tenth of a
    second. Spark jobs, and a variable that the user has set, are not affected.
    """
    if arguments[:1] != ["job"]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def open_missing_streams() -> None:
    """Open standard streams that the caller has closed (`<&-`, `>&-`) on the null device.

    Python replaces a closed stream with None, and the next file or connection would get the stream's file descriptor
    and the printed text.
    """
    nothing = Path(os.devnull)
    if sys.stdin is None:
        sys.stdin = nothing.open()
    if sys.stdout is None:
        sys.stdout = nothing.open("w")
    if sys.stderr is None:
        sys.stderr = nothing.open("w")


def buffer_output() -> None:
    """Buffer standard output even if Python runs with PYTHONUNBUFFERED, as in many containers.

    Without a buffer, Python drops the rest of a text that the system writes only in part, as pipes do with large texts.
    """
    if isinstance(sys.stdout.buffer, io.RawIOBase):
        stream, raw = sys.stdout, sys.stdout.buffer
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=stream.isatty()
        )


def flush_streams(code: int) -> int:
    """Flush the standard streams; return the exit code, which reports a failure if output was lost."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        # A command that has failed has reported its error, which may be the same one.
        if code == ExitCode.OK:
            typer.echo(f"error: {error}", err=True)
            code = ExitCode.FAILED
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    return code


def main() -> NoReturn:
    """Run the command line and end the process.

    The process ends without Python's own finalization, which could interrupt a thread of the HTTP client while the
    thread delivers its last result: CPython would then abort (seen in one of five short commands).
    """
    leave_out_packages(sys.argv[1:])
    pause_collection(sys.argv[1:])
    calculate_alone(sys.argv[1:])
    open_missing_streams()
    buffer_output()
    code = run_command(sys.argv[1:])
    os._exit(flush_streams(code))


if __name__ == "__main__":
    main()
