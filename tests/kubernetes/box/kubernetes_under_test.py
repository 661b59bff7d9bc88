"""A test Kubernetes: its box, access to its parts, and how it is started and shared.

`start` starts a Kubernetes that runs until it is stopped, for `make kubernetes`. `shared` yields a Kubernetes that
several processes of a test run use, and that ends when the last of these processes ends in any way: each process has a
shared lock on a file of the box, and the front door ends the box when it gets the exclusive lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from audit_log import AuditEvent, AuditLog
from authority import kubeconfig, replace_token_key
from box import Box, boxes, check_machine
from daemons import GARBAGE
from doors import Door, open_door
from go_programs import CONTROL_PLANE, NODES, POLICIES, PROGRAMS, cache_folder, program
from images import PAUSE_IMAGE, write_image
from kube_client import KubeClient, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

# Every user of a shared box has shared locks on both files: the front door waits for the first, and a leaving user
# checks the second for other users.
USERS_FILES = ("users", "members")
LOGS_SECONDS = 86400.0


class Kubernetes:
    """One running test Kubernetes."""

    def __init__(self, box: Box) -> None:
        """Access a running box."""
        self.box = box
        self.api = KubeClient(self.kubeconfig)
        self._audit = AuditLog(box.logs / "audit.log")

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator, valid inside and outside the box."""
        return self.box.state / "admin.kubeconfig"

    @property
    def enter(self) -> list[str]:
        """Words that, put before a command, run the command in the network of the box."""
        return self.box.enter()

    def environment(self, kubeconfig_path: Path | None = None) -> dict[str, str]:
        """Return the environment of a program that uses kubectl, helm and the API server."""
        path = f"{self.box.state / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        inherited = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
        config = str(kubeconfig_path or self.kubeconfig)
        cache = str(self.box.state / "kubectl-cache")
        return {**inherited, **GARBAGE, "PATH": path, "KUBECONFIG": config, "KUBECACHEDIR": cache}

    def run(
        self, *command: str, stdin: str | None = None, check: bool = True, kubeconfig_path: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the network of the box, such as kubectl, helm4 or fairlead, and return its output.

        Raise `AssertionError` with the output when the program fails and `check` is true. Helm and similar programs are
        built first if missing.
        """
        if command[0] in PROGRAMS:
            program(command[0])
        done = subprocess.run(
            [*self.enter, *command],
            env=self.environment(kubeconfig_path),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        return done

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output."""
        return self.run("kubectl", *arguments, stdin=stdin).stdout

    def namespace(self, prefix: str = "test", *, enforce: str = "restricted") -> str:
        """Create a namespace with a new name; return it once pods can be created. The namespace is never removed."""
        made = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "generateName": f"{prefix}-",
                    "labels": {"pod-security.kubernetes.io/enforce": enforce},
                },
            }
        )
        name = str(made["metadata"]["name"])
        self.api.wait("serviceaccount/default", name, bool)
        return name

    def account_kubeconfig(self, account: str, namespace: str, *, server: str | None = None) -> Path:
        """Return a kubeconfig with a token of an existing service account, optionally for another door."""
        token = self.api.token(account, namespace)
        authority = (self.box.state / "pki" / "ca.crt").read_bytes()
        document = kubeconfig(server or self.server, authority, {"token": token}, namespace)
        path = self.box.state / f"{namespace}-{account}-{os.getpid()}.kubeconfig"
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    @property
    def server(self) -> str:
        """The address of the API server, inside and outside the box."""
        cluster: Manifest = json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]
        return str(cluster["server"])

    # ---- the audit log

    def audit_mark(self) -> int:
        """Return the current end of the audit log."""
        return self._audit.mark()

    def audit(
        self, *, since: int = 0, user: str | None = None, namespace: str | None = None, writes: bool = False
    ) -> list[AuditEvent]:
        """Return events of the audit log; see `AuditLog.events`."""
        return self._audit.events(since=since, user=user, namespace=namespace, writes=writes)

    # ---- the control plane

    def door(self) -> AbstractContextManager[Door]:
        """Open a door: a proxy for the API server that can be slow, failing or closed, for clients with tokens."""
        return open_door(self.enter, self.box.state)

    def restart_api_server(self, *, number: int = signal.SIGKILL) -> None:
        """Kill the API server and start it again, which affects every user of this Kubernetes."""
        self.box.run_inside("stop", "kube-apiserver", "--signal", str(int(number)))
        self.box.run_inside("start", "kube-apiserver")

    def replace_token_key(self) -> None:
        """Sign tokens of service accounts with a new key; only tokens of the previous key stay valid."""
        replace_token_key(self.box.state / "pki")
        self.restart_api_server()


@dataclass(frozen=True, slots=True)
class Size:
    """Number of nodes of a test Kubernetes, and whether its network enforces policies."""

    fake_nodes: int = 3
    real_nodes: int = 0
    policies: bool = False
    """Whether network policies are enforced, on the only real node."""

    def __post_init__(self) -> None:
        """Check that policies have one real node."""
        assert not self.policies or self.real_nodes == 1, "network policies need exactly one real node"

    @property
    def programs(self) -> tuple[str, ...]:
        """Programs that must be built for this size."""
        return (
            *CONTROL_PLANE,
            *(NODES if self.real_nodes else ()),
            *(POLICIES if self.policies else ()),
        )

    def check_machine(self) -> None:
        """Raise `BoxUnusable` when a requirement of this size is missing on the machine."""
        check_machine(real_nodes=self.real_nodes > 0, policies=self.policies)


CONTROL_PLANE_ONLY = Size()


def start(name: str, size: Size) -> Kubernetes:
    """Start a Kubernetes that runs until its box is destroyed; raise `BoxUnusable` or `ProgramsMissing`."""
    box = Box(name)
    size.check_machine()
    box.create(size.programs)
    return _bring_up(box, size)


@contextmanager
def shared(
    name: str, size: Size = CONTROL_PLANE_ONLY, *, prepare: Callable[[Kubernetes], None] | None = None
) -> Iterator[Kubernetes]:
    """Share the Kubernetes of that name with other processes; the first process starts it, the last process ends it.

    `prepare` is called once, by the process that starts the Kubernetes.
    """
    box = Box(name)
    size.check_machine()
    _lock_file(name).parent.mkdir(parents=True, exist_ok=True)
    with _lock_file(name).open("w") as lock, ExitStack() as stack:
        fcntl.flock(lock, fcntl.LOCK_EX)
        joined = box.pid() is not None and _hold(box, stack)
        if not joined:
            remove_forgotten()
            box.create(size.programs)
            _hold(box, stack)
        kubernetes = Kubernetes(box) if joined else _bring_up(box, size, until_unused=True)
        if prepare and not joined:
            prepare(kubernetes)
        fcntl.flock(lock, fcntl.LOCK_UN)
        try:
            yield kubernetes
        finally:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stack.close()
            if _is_unused(box):
                box.destroy()


def remove_forgotten() -> None:
    """Remove the remains of boxes that ended unattended, and old logs."""
    for box in boxes():
        with _lock_file(box.name).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Another process is starting or ending the box.
                continue
            if box.pid() is None:
                _remove_rest(box)


def _remove_rest(box: Box) -> None:
    if (box.state / "box.json").exists():
        box.destroy()
    if box.logs.exists() and time.time() - box.logs.stat().st_mtime > LOGS_SECONDS:
        shutil.rmtree(box.state)
        _lock_file(box.name).unlink(missing_ok=True)


def _lock_file(name: str) -> Path:
    return cache_folder() / "boxes" / f"{name}.lock"


def _bring_up(box: Box, size: Size, *, until_unused: bool = False) -> Kubernetes:
    """Start everything in a new box, and destroy the box when a start fails."""
    if size.real_nodes:
        write_image(box.state / "pause.tar", PAUSE_IMAGE, program("pause"))
    words = ["--state", str(box.state), "--cgroup", box.cgroup, *(["--until-unused"] if until_unused else [])]
    words += ["--fake-nodes", str(size.fake_nodes), "--real-nodes", str(size.real_nodes)]
    words += ["--policies"] if size.policies else []
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(socket.SOMAXCONN)
            words += ["--listener", str(listener.fileno()), "--port", str(listener.getsockname()[1])]
            box.run_inside("up", *words, pass_fds=(listener.fileno(),))
    except BaseException:
        box.destroy()
        raise
    return Kubernetes(box)


def _hold(box: Box, stack: ExitStack) -> bool:
    """Acquire shared locks on the users files, held until the stack is closed; return False if the box is ending."""
    for file in USERS_FILES:
        users = stack.enter_context((box.state / file).open("a"))
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_unused(box: Box) -> bool:
    """Return whether no process uses the box, according to the lock file for which the front door does not wait."""
    with (box.state / USERS_FILES[1]).open("a") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
