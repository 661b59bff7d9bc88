"""The operator as a process in the box of a test Kubernetes, with exactly the rights of its chart.

`Operators.start` creates the service account and the roles that the chart renders for a mode, and starts `fairlead
operator start` with a token of the account. The log is read continuously, so that a test waits for an event instead of
a fixed time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from chart_tools import OPERATOR_CHART, tool

if TYPE_CHECKING:
    from audit_log import AuditEvent
    from kubernetes_under_test import Kubernetes

ROOT = OPERATOR_CHART.parents[1]
LOG_SECONDS = 0.1
RELEASE_LABELS = {"app.kubernetes.io/managed-by": "Helm"}
RELEASE_ANNOTATIONS = {
    "meta.helm.sh/release-name": "fairlead-operator",
    "meta.helm.sh/release-namespace": "fairlead",
}
DEFINITIONS = sorted((ROOT / "manifests/crds").glob("*.fairlead.dev.yaml"))
ACCOUNT = "fairlead-operator"
RIGHTS = frozenset({"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
WAIT_SECONDS = 180.0
ASK = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


def install_definitions(kubernetes: Kubernetes) -> None:
    """Apply Fairlead's definitions, and wait until they are served.

    The definitions have the labels of the Helm release in the README, so that Helm can install that release later.
    """
    for path in DEFINITIONS:
        definition = yaml.safe_load(path.read_text())
        definition["metadata"].setdefault("labels", {}).update(RELEASE_LABELS)
        definition["metadata"].setdefault("annotations", {}).update(RELEASE_ANNOTATIONS)
        (made,) = kubernetes.api.apply(definition)
        kubernetes.api.wait(f"crd/{made['metadata']['name']}", None, is_established)


class OperatorProcess:
    """One running operator."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, user: str) -> None:
        """Start the operator; `user` is the operator's user for the API server."""
        self.user = user
        self.log = log
        self.process = subprocess.Popen(
            command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._lines: list[dict[str, Any]] = []
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(
        self, event: str, where: Callable[[dict[str, Any]], bool] = lambda _: True, *, seen: int = 0
    ) -> dict[str, Any]:
        """Wait until the operator has logged an event more than `seen` times. Raise `AssertionError`."""

        def matching() -> list[dict[str, Any]]:
            return [line for line in self._lines if line.get("event") == event and where(line)]

        with self._told:
            self._told.wait_for(lambda: len(matching()) > seen or self._ended(), WAIT_SECONDS)
            found = matching()
        assert len(found) > seen, f"the operator did not log {event!r}; it said:\n{self.said()}"
        return found[seen]

    def count(self, event: str) -> int:
        """Return how often the operator logged an event."""
        with self._told:
            return sum(line.get("event") == event for line in self._lines)

    def said(self, last: int = 40) -> str:
        """Return the last lines of the operator's log."""
        with self._told:
            return "\n".join(json.dumps(line) for line in self._lines[-last:])

    @property
    def identity(self) -> str:
        """The operator's name in the Lease, available once it leads."""
        return str(self.wait_for("leadership taken")["identity"])

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Send a signal and wait for the end; return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def memory_bytes(self) -> int:
        """Return the current memory use of the operator."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    @property
    def port(self) -> int:
        """Port of metrics and probes, inside the box."""
        return int(self.wait_for("metrics listener is ready")["port"])

    def _read(self) -> None:
        assert self.process.stderr is not None, "its errors are a pipe"
        with self.process.stderr as errors, self.log.open("w") as file:
            for text in errors:
                file.write(text)
                file.flush()
                try:
                    line = json.loads(text)
                except ValueError:
                    line = {"event": "", "text": text}
                with self._told:
                    self._lines.append(line)
                    self._told.notify_all()
        with self._told:
            self._told.notify_all()

    def _ended(self) -> bool:
        return not self._reader.is_alive() or self.process.poll() is not None


@dataclass
class Operators:
    """Starts operators in one test Kubernetes, and ends them all at the end of the test.

    `values` are further values of the chart that grants the rights, such as `certManager.enabled=true`.
    """

    kubernetes: Kubernetes
    folder: Path
    values: tuple[str, ...] = ()
    started: list[OperatorProcess] = field(default_factory=list)

    def grant(self, namespace: str, *, scope: str = "own", watch: Sequence[str] = ()) -> str:
        """Create the service account and the rights of the chart; return the user for the API server.

        `scope` is the chart's `watch.scope`: `own`, `list` (of the namespaces in `watch`) or `all`.
        """
        settings = ["--set", f"watch.scope={scope}", "--set", "crds.enabled=false"]
        settings += ["--set", f"watch.namespaces={{{','.join(watch)}}}"] if watch else []
        settings += [word for value in self.values for word in ("--set", value)]
        text = tool("helm4", "template", ACCOUNT, OPERATOR_CHART, "--namespace", namespace, *settings).stdout
        for manifest in yaml.safe_load_all(text):
            if manifest and manifest["kind"] in RIGHTS and "helm.sh/hook" not in str(manifest["metadata"]):
                self.kubernetes.api.apply(manifest, namespace)
        return f"system:serviceaccount:{namespace}:{ACCOUNT}"

    def start(
        self,
        namespace: str,
        *,
        scope: str = "own",
        watch: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> OperatorProcess:
        """Start an operator whose own namespace is `namespace`.

        `environment`: additional settings, such as `FAIRLEAD_OPERATOR_BROKER_URL`. `server`: a different address of the
        API server, such as a door's.
        """
        user = self.grant(namespace, scope=scope, watch=watch)
        kubeconfig = self.kubernetes.account_kubeconfig(ACCOUNT, namespace, server=server)
        number = len(self.started)
        mine = {
            "FAIRLEAD_OPERATOR_NAMESPACES": {"own": "", "list": ",".join(watch), "all": "*"}[scope],
            "FAIRLEAD_OPERATOR_POD_NAMESPACE": namespace,
            "FAIRLEAD_OPERATOR_POD_NAME": f"operator-{number}",
            "FAIRLEAD_OPERATOR_METRICS_LISTEN": "127.0.0.1:0",
            "FAIRLEAD_OPERATOR_LOG_FORMAT": "json",
            "FAIRLEAD_OPERATOR_ROLE_BINDING": f"{namespace}-{ACCOUNT}-listed" if scope == "list" else "",
            # Nothing listens at this address, so a connection fails at once; looking up names of pods would take a long
            # time.
            "FAIRLEAD_OPERATOR_BROKER_URL": "http://127.0.0.1:1",
            "FAIRLEAD_OPERATOR_ETCD_URL": "http://127.0.0.1:1",
        }
        program = Path(sys.executable).with_name("fairlead")
        process = OperatorProcess(
            [*self.kubernetes.enter, str(program), "operator", "start"],
            {**self.kubernetes.environment(kubeconfig), **mine, **(environment or {})},
            self.folder / f"operator-{number}.log",
            user,
        )
        self.started.append(process)
        process.wait_for("operator starts")
        return process

    def ask(self, operator: OperatorProcess, path: str) -> str:
        """Return an answer from the operator's listener, for example to a request for `/metrics`."""
        url = f"http://127.0.0.1:{operator.port}{path}"
        return self.kubernetes.run(sys.executable, "-c", ASK, url).stdout

    def forbidden(self, user: str, since: int) -> list[AuditEvent]:
        """Return the requests since a mark in the audit log for which the account had no rights."""
        return [event for event in self.kubernetes.audit(since=since, user=user) if not event.has_right]

    def writes(
        self, user: str, since: int, at_least: int = 0, turns: int = 0, *, namespace: str | None = None
    ) -> list[AuditEvent]:
        """Return the writes of the account since a mark, in all namespaces or one, without renewals of its Lease.

        Wait until the log contains `at_least` writes in at least `turns` turns of operator processes, because a watch
        may show a write before the audit log does. Raise `AssertionError` when the writes are not logged.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            events = self.kubernetes.audit(since=since, user=user, namespace=namespace, writes=True)
            found = [event for event in events if event.resource != "leases"]
            if len(found) >= at_least and len(list(groupby(each.user_agent for each in found))) >= turns:
                return found
            assert time.monotonic() < deadline, (
                f"the audit log tells of {found}, not of {at_least} writes in {turns} turns"
            )
            threading.Event().wait(LOG_SECONDS)

    def stop_all(self) -> None:
        """End every running operator at once."""
        for operator in self.started:
            if operator.process.poll() is None:
                operator.stop(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class SharedOperator:
    """One operator for the tests of a file, with a namespace for each test."""

    operators: Operators
    user: str
    namespaces: Iterator[str]

    def namespace(self) -> str:
        """Return a namespace that the operator watches, for one test alone."""
        return next(self.namespaces)

    def writes(self, namespace: str, since: int, at_least: int = 0) -> list[AuditEvent]:
        """Return the writes of the operator in a namespace since a mark; see `Operators.writes`."""
        return self.operators.writes(self.user, since, at_least, namespace=namespace)


@contextmanager
def shared_operator(kubernetes: Kubernetes, folder: Path, namespaces: int) -> Iterator[SharedOperator]:
    """Start an operator that watches `namespaces` new namespaces; check at the end that no request was forbidden."""
    install_definitions(kubernetes)
    names = [kubernetes.namespace() for _ in range(namespaces)]
    mark = kubernetes.audit_mark()
    operators = Operators(kubernetes, folder)
    try:
        operator = operators.start(names[0], scope="list", watch=names)
        yield SharedOperator(operators, operator.user, iter(names))
        forbidden = [f"{each.verb} {each.uri}" for each in operators.forbidden(operator.user, mark)]
        assert forbidden == [], "the chart's rights do not suffice"
    finally:
        operators.stop_all()


def is_established(definition: dict[str, Any] | None) -> bool:
    """Return whether the API server serves the kind of a definition."""
    conditions = ((definition or {}).get("status") or {}).get("conditions") or []
    return any(
        condition["type"] == "Established" and condition["status"] == "True" for condition in conditions
    )
