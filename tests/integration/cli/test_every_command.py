"""Every command in a real terminal: typed into tmux, with its output on the screen."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from fairlead.cli.main import app, imported
from tmux_terminal import tmux_terminals

if TYPE_CHECKING:
    from click import Command

COMMANDS = [
    ("version", "fairlead 0."),
    ("profile create here --bootstrap {data}", "profile here is saved in "),
    ("profile list", "*   here      {data}"),
    ("profile use here", "commands go to {data}"),
    (
        "fairlead profile create off --bootstrap {data}; fairlead profile delete off",
        "profile off is deleted",
    ),
    ("completion bash", "complete -o default -F _fairlead_completion fairlead"),
    ("topic create orders -p 3 -r 3", "created topic orders with 3 partitions"),
    ("topic list", "orders   3            3"),
    ("topic describe orders", "retention.ms                      604800000             default"),
    ("topic sizes", "orders   3 "),
    ("topic alter orders -c retention.ms=86400000", "retention.ms   86400000   topic"),
    (r"printf 'a\nb\nc\n' | fairlead produce orders --partition 0 -v", "orders-0 offsets 0 to 2"),
    ("consume orders --from-beginning -n 3", "a\nb\nc\nended with 0"),
    ("topic offsets orders", "0           0       3     3"),
    ("topic trim orders --partition 0 --before 1", "orders-0 begins at offset 1"),
    ("consume orders -g team --from-beginning -n 2", "b\nc\nended with 0"),
    ("group list", "team    "),
    ("group describe team", "state        empty"),
    ("group lag team", "orders   0           3           3     0"),
    ("group reset team --topic orders --to earliest", "orders   0           3        1"),
    ("group delete team --yes", "deleted group team"),
    ("broker list", "running   1         3"),
    ("broker describe 1", "controller  no"),
    ("broker reports", "FREE BYTES"),
    ("broker cordon 1", "broker 1 gets no new replicas"),
    ("broker uncordon 1", "broker 1 may get new replicas"),
    ("broker drain 1", "warning: the drain of broker 1 cannot finish"),
    ("broker undrain 1", "broker 1 is no longer draining"),
    ("broker request-restart 1", "broker 1 may be restarted within 300 s"),
    ("broker unregister 1", "broker 1 is registered; stop the broker"),
    ("broker prepare-stop --listen {data_address} --seconds 1", "ended with 0"),
    ("partition digest orders 0", "compared"),
    ("partition describe orders 0", "leader"),
    ("partition voters orders 0", "CURRENT"),
    ("partition clean orders 0", "cleanup.policy=delete"),
    ("partition elect orders 0", "-        -          "),
    ("partition reassign orders 0 --to 0,1", "0,1,2      -        2"),
    ("partition moves", "TOPIC   PARTITION"),
    ("partition accept-damage orders 0 --first-offset 1 --next-good-offset 2", "error: "),
    ("cluster config", "default.replication.factor"),
    ("cluster health", "brokers           3"),
    ("cluster info", "controller  0"),
    ("whoami", "anonymous"),
    ("token create user:ann --file {folder}/ann.token", " of user:ann is in {folder}/ann.token"),
    ("token list", "user:ann"),
    ("token revoke nothing", "no token has the id nothing"),
    ("user create bob --produce orders --file {folder}/bob.token", " of user:bob is in {folder}/bob.token"),
    ("user list", "write topic:orders, write producer:orders"),
    ("user delete bob", "deleted user:bob with 1 tokens and 2 ACLs"),
    ("acl allow user:ann read topic:orders", ": allow user:ann read topic:orders"),
    ("acl deny user:ann read topic:secret", ": deny user:ann read topic:secret"),
    ("acl list", "topic:secret"),
    ("acl check user:ann read topic:orders", "allowed: "),
    ("acl remove nothing", "no ACL has the id nothing"),
    ("quota set user:ann --produce 1MiB", "user:ann: each produce_bytes_per_second 1048576"),
    ("quota list", "produce_bytes_per_second"),
    ("quota remove user:ann", "removed user:ann"),
    ("link create east --source {data} --topics 'orders*'", "the source of link east is this cluster"),
    ("link list", "SOURCE STATE"),
    ("link describe east", "there is no link east"),
    ("link alter east --rate 50MB", "there is no link east"),
    ("link pause east", "there is no link east"),
    ("link resume east", "there is no link east"),
    ("link acknowledge east", "there is no link east"),
    ("link promote east --all", "there is no link east"),
    ("link take-back east orders", "there is no link east"),
    ("link adopt east orders", "there is no link east"),
    ("link tails east", "there is no link east"),
    ("link delete east", "there is no link east"),
    ("transaction list", "TRANSACTION"),
    ("transaction hanging", "TIMEOUT MS"),
    ("partition transactions orders 0", "last stable offset  3"),
    ("partition producers orders 0", "PRODUCER"),
    ("transaction describe billing", "error: "),
    ("transaction abort billing --yes", "error: "),
    ("security status", "mode        open"),
    ("security mode open", "the security mode is open"),
    ("cluster move-coordination", "Missing option '--from'"),
    ("bench produce orders -n 2000", "produce   2000      200000"),
    ("bench consume orders -n 1000", "consume   1"),
    ("bench latency orders -n 20", "latency   20        2000"),
    ("job list", "flight_windows"),
    ("job info", "pyspark"),
    ("job run nothing", "nothing"),
    ("operator start", "the address of the API server cannot be read"),
    ("topic delete orders --yes", "deleted topic orders"),
]
"""Words after `fairlead`, in the order in which they are typed, and the expected output."""
INTERACTIVE = {"dev up", "top", "broker start", "console"}
"""Commands that run until Ctrl-C."""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user who has just installed Fairlead."""
    programs = str(Path(sys.executable).parent)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
    }


def every_command() -> set[str]:
    """Return the names of all commands of the program."""
    root = typer.main.get_command(app)
    return {path for name in root.commands for path in _below(name, imported_or_own(root, name))}  # type: ignore[attr-defined]


def imported_or_own(root: Command, name: str) -> Command:
    """Return a command with its subcommands, most of which are imported at their first call."""
    try:
        return imported(name)
    except ModuleNotFoundError:
        return root.commands[name]  # type: ignore[attr-defined, no-any-return]


def _below(path: str, command: Command) -> set[str]:
    below = getattr(command, "commands", None)
    if below is None:
        return {path}
    return {each for name, child in below.items() for each in _below(f"{path} {name}", child)}


def test_every_command_is_typed_here() -> None:
    """Every command of the program is listed in this file, so that a new command needs a new line."""
    words = [line.rpartition("fairlead ")[2] for line, _ in COMMANDS]
    missing = {
        name for name in every_command() - INTERACTIVE if not any(each.startswith(name) for each in words)
    }

    assert missing == set()


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_in_a_terminal(home: dict[str, str], tmp_path: Path) -> None:
    """In a terminal, every command prints its expected output and no traceback, against three brokers."""
    with tmux_terminals(tmp_path, home, "cluster", "user") as (cluster, user):
        cluster.begin(f"fairlead dev up --brokers 3 --listen 127.0.0.1:0 --data {tmp_path}/brokers")
        ready = cluster.wait_for("broker 2: data")
        address = re.findall(r"broker 0: data http://(\S+),", ready)[0]
        names = {"data": f"http://{address}", "data_address": address, "folder": str(tmp_path)}
        wrong = []
        for line, seen in COMMANDS:
            typed = line if "fairlead " in line else f"fairlead {line}"
            shown = user.run(typed.format(**names))
            if seen.format(**names) not in shown or "Traceback" in shown:
                wrong.append(f"{typed}: {seen!r} is not in\n{shown}")
        user.begin("fairlead top")
        user.wait_for("TOPIC")
        user.press("C-c")
        after_top = user.end()
        user.begin(
            f"fairlead broker start --data {tmp_path}/one --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0 "
            "--ops-listen 127.0.0.1:0"
        )
        user.wait_for("is ready")
        user.press("C-c")
        after_broker = user.end()
        cluster.press("C-c")
        after_cluster = cluster.end()

    assert wrong == [], "\n\n".join(wrong)
    assert [after.splitlines()[-2].strip() for after in (after_top, after_broker, after_cluster)] == [
        "ended with 0"
    ] * 3
