"""Commands inside the box: `python inside.py COMMAND`, run by `box.py` in the box's namespaces.

Commands are short-lived: they start daemons, which become children of process 1 of the box. Standard output is read by
the caller; errors go to standard error.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import control_plane
import fake_nodes
import real_nodes
from authority import Authority
from daemons import STATE, Daemon, NotReady
from furnishing import furnish
from kube_client import KubeClient, Manifest, WaitedInVain

FRONT_DOOR = Path(__file__).with_name("front_door.py")
NODES_SECONDS = 90.0


def main() -> int:
    """Run one command; return 0 on success."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up")
    starting.add_argument("--state", type=Path, required=True)
    starting.add_argument("--listener", type=int, required=True, help="descriptor of the front door's socket")
    starting.add_argument("--port", type=int, required=True, help="the port it listens on")
    starting.add_argument("--fake-nodes", type=int, default=3)
    starting.add_argument("--real-nodes", type=int, default=0)
    starting.add_argument("--policies", action="store_true", help="enforce network policies")
    starting.add_argument("--cgroup", default="fairlead", help="the cgroup of all real nodes")
    starting.add_argument("--until-unused", action="store_true")
    for name in ("stop", "start", "signal"):
        command = commands.add_parser(name)
        command.add_argument("daemon")
        command.add_argument("--signal", type=int, default=signal.SIGTERM)
    arguments = parser.parse_args()
    try:
        run(arguments)
    except (NotReady, WaitedInVain) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Run the command that the arguments name."""
    match arguments.command:
        case "up":
            up(arguments)
        case "stop":
            Daemon(arguments.daemon).stop(arguments.signal)
        case "signal":
            Daemon(arguments.daemon).send(arguments.signal)
        case "start":
            Daemon(arguments.daemon).start()
            if arguments.daemon == "kube-apiserver":
                control_plane.wait_for_api_server()
        case other:
            raise AssertionError(other)


def up(arguments: argparse.Namespace) -> None:
    """Furnish the box and start the control plane; return when pods can run on fake nodes."""
    furnish(arguments.state)
    authority = Authority()
    start_front_door(arguments)
    control_plane.start(authority)
    client = KubeClient(authority.kubeconfig("admin", f"https://127.0.0.1:{arguments.port}"))
    client.apply(fake_nodes.storage_classes(real=arguments.real_nodes > 0))
    if arguments.fake_nodes:
        fake_nodes.start()
    for number in range(1, arguments.fake_nodes + 1):
        client.create(fake_nodes.manifest(number))
    if arguments.real_nodes:
        numbers = list(range(1, arguments.real_nodes + 1))
        real_nodes.start(authority, numbers, arguments.cgroup, STATE / "pause.tar")
    wait_for_fake_nodes(client, arguments.fake_nodes)
    for number in range(1, arguments.real_nodes + 1):
        wait_for_real_node(client, f"node-{number}")
    if arguments.policies:
        real_nodes.enforce_policies("node-1")
    # Pods are refused until their namespace has its service account.
    client.wait("serviceaccount/default", "default", bool)


def start_front_door(arguments: argparse.Namespace) -> None:
    """Open the API server to the machine, and end the box when it has no more users."""
    server = control_plane.SERVER.removeprefix("https://")
    unused = ["--until-unused", STATE / "users"] if arguments.until_unused else []
    listener = ["--listener", arguments.listener, "--server", server]
    Daemon("front-door").start(
        [sys.executable, FRONT_DOOR, *listener, *unused], pass_fds=(arguments.listener,)
    )


def wait_for_fake_nodes(client: KubeClient, number: int) -> None:
    """Wait until `number` fake nodes are Ready."""
    client.wait_list(
        "node",
        None,
        lambda nodes: sum(map(is_ready, nodes)) == number,
        selector="type=fake",
        seconds=NODES_SECONDS,
    )


def wait_for_real_node(client: KubeClient, name: str) -> None:
    """Wait until a node is Ready; when its kubelet ends first, raise an error with the end of the kubelet's log."""

    def ready() -> bool:
        node = client.get(f"node/{name}")
        return node is not None and is_ready(node)

    Daemon(f"{name}-kubelet").wait_until(ready, NODES_SECONDS)


def is_ready(node: Manifest) -> bool:
    """Return whether the node's condition Ready is true."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


if __name__ == "__main__":
    sys.exit(main())
