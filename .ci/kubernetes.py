"""`make kubernetes`: runs Kubernetes for experiments on this machine, with kubectl and Helm, until `down` stops it.

    make kubernetes KUBERNETES="up"             start a Kubernetes and print how to use it
    make kubernetes KUBERNETES="status"         show processes, memory and nodes
    make kubernetes KUBERNETES="shell"          run a shell in its network, with KUBECONFIG and kubectl, helm4, helm3
    make kubernetes KUBERNETES="shell kubectl get pods -A"
    make kubernetes KUBERNETES="up --real-nodes 3"   start a Kubernetes that runs pods, with Fairlead's images
    make kubernetes KUBERNETES="up --real-nodes 1 --policies"   start a node that enforces network policies
    make kubernetes KUBERNETES="images"         build Fairlead's images again and load them into its nodes
    make kubernetes KUBERNETES="down"           stop the Kubernetes and keep its logs

The command needs root. The first start builds the programs of Kubernetes from Go modules, which takes twenty minutes on
two idle cores. The first start with real nodes also builds the images of broker and etcd, which takes ten more minutes.
Each step reports its progress.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "kubernetes/box"), str(TESTS / "etcd")]

from box import Box, BoxUnusable
from go_programs import CHART_TOOLS, ProgramsMissing, program
from images import ImagesMissing, make_product_images
from kubernetes_under_test import Kubernetes, Size, remove_forgotten, start
from pods import KubernetesPods, load_product_images


def main(words: list[str]) -> int:
    """Run one command; return the exit code of the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--name", default="dev", help="name of the Kubernetes; several can run at the same time"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="start a Kubernetes and print how to use it")
    starting.add_argument(
        "--fake-nodes", type=int, help="number of fake nodes; default: 3 without real nodes"
    )
    starting.add_argument(
        "--real-nodes", type=int, default=0, help="number of nodes with containerd and kubelet"
    )
    starting.add_argument(
        "--policies", action="store_true", help="enforce network policies, with one real node"
    )
    commands.add_parser("status", help="show processes, memory and nodes")
    commands.add_parser("images", help="build Fairlead's images and load them into all nodes")
    commands.add_parser("down", help="stop the Kubernetes and keep its logs")
    shell_parser = commands.add_parser("shell", help="run a shell or a command in its network")
    shell_parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(words)
    box = Box(arguments.name)
    try:
        match arguments.command:
            case "up":
                up(box, arguments)
            case "status":
                status(box)
            case "shell":
                shell(box, arguments.words)
            case "images":
                make_product_images()
                load_product_images(Kubernetes(box))
            case _:
                box.destroy()
    except (BoxUnusable, ImagesMissing, ProgramsMissing) as error:
        print(f"make kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


def up(box: Box, arguments: argparse.Namespace) -> None:
    """Start Kubernetes unless it is already running."""
    remove_forgotten()
    real = arguments.real_nodes
    fake = arguments.fake_nodes if arguments.fake_nodes is not None else 0 if real else 3
    size = Size(fake_nodes=fake, real_nodes=real, policies=arguments.policies)
    kubernetes = Kubernetes(box) if box.pid() else start(box.name, size)
    if real:
        make_product_images()
        load_product_images(kubernetes)
    print(f"export KUBECONFIG={kubernetes.kubeconfig} PATH={box.state / 'bin'}:$PATH")
    print(f"logs and audit.log are in {box.logs}; tests use this Kubernetes with KUBERNETES_BOX={box.name}")


def status(box: Box) -> None:
    """Print the running processes and their memory; pages shared by several processes count once."""
    total = 0.0
    for pid, name, megabytes in box.processes():
        total += megabytes
        print(f"{pid:8} {megabytes:7.0f} MB  {name}")
    print(f"{'':8} {total:7.0f} MB  together\n", flush=True)
    print(Kubernetes(box).kubectl("get", "nodes"))


def shell(box: Box, words: list[str]) -> None:
    """Replace this process with a command that runs in the Kubernetes network and sees all files of the machine."""
    for name in CHART_TOOLS if words[:1] and words[0] in CHART_TOOLS else ():
        program(name)
    reach = KubernetesPods(box).enter if (box.state / "resolv.conf").exists() else box.enter()
    command = [*reach, *(words or [os.environ.get("SHELL", "bash")])]
    os.execvpe(command[0], command, Kubernetes(box).environment())  # noqa: S606 (replaces this process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
