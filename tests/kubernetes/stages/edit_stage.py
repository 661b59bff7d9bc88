"""Real brokers behind fake pods, and operators that are killed while their API server fails, for random edits."""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event

import urllib3

from broker_processes import BrokerProcesses, broker_processes
from cluster_words import condition_of
from doors import Door
from kube_client import KubeClient, Manifest
from kubernetes_under_test import Kubernetes
from operator_process import ACCOUNT, OperatorProcess, Operators
from warm_programs import FAIRLEAD

CLUSTER = "clusters.fairlead.dev/main"
CORE = 3
"""Number of brokers that are never removed: only their absences are counted."""
RESYNC_SECONDS = 10
OPERATORS_MAX = 2
FAULTS = ("conflicts", "errors", "lost answers", "slow", "away", "flaky")
GAP_SECONDS_MAX = 3.0
PERMIT_KEY = b"/fairlead/fairlead/meta/restart-permit"
HTTP_ERROR = 300
UNFORESEEN = ('"exception"', "Traceback")
"""Text of an unforeseen exception in the operator's log."""


@dataclass(slots=True)
class EditStage:
    """One namespace with brokers, and operators that manage it through one door."""

    kubernetes: Kubernetes
    operators: Operators
    door: Door
    namespace: str
    brokers: BrokerProcesses
    user: str
    kubeconfig: Path
    mark: int
    """Position in the audit log at which the edits begin."""
    running: list[OperatorProcess] = field(default_factory=list)
    kills: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    permits: set[str] = field(default_factory=set)
    """Every observed permit to restart a broker, by its revision."""
    over: Event = field(default_factory=Event)

    @property
    def api(self) -> KubeClient:
        """Client that reaches the API server directly, not through the door."""
        return self.kubernetes.api

    def pause(self, seconds: float) -> None:
        """Wait for a duration, since nothing reports the observed changes."""
        self.over.wait(seconds)

    def start_operator(self) -> None:
        """Start an operator outside the box, in the network of the brokers."""
        number = len(self.operators.started)
        settings = {
            "FAIRLEAD_OPERATOR_POD_NAMESPACE": self.namespace,
            "FAIRLEAD_OPERATOR_POD_NAME": f"operator-{number}",
            "FAIRLEAD_OPERATOR_BROKER_URL": self.brokers.url,
            "FAIRLEAD_OPERATOR_RESYNC_SECONDS": str(RESYNC_SECONDS),
            "FAIRLEAD_OPERATOR_METRICS_LISTEN": "127.0.0.1:0",
            "FAIRLEAD_OPERATOR_LOG_FORMAT": "json",
            "FAIRLEAD_OPERATOR_LOG_LEVEL": "debug",
        }
        operator = OperatorProcess(
            ["setpriv", "--pdeathsig", "KILL", FAIRLEAD, "operator", "start"],
            {**self.kubernetes.environment(self.kubeconfig), **settings},
            self.operators.folder / f"operator-{number}.log",
            self.user,
        )
        self.operators.started.append(operator)
        self.running.append(operator)

    def disturb(self, chance: Random) -> list[str]:
        """Kill operators and make the API server fail for some seconds; return the list of disturbances."""
        done = []
        for _ in range(chance.randint(0, 3)):
            self.pause(chance.uniform(0.0, GAP_SECONDS_MAX))
            self.look_at_permits()
            done.append(chance.choice((self._kill, self._second, self._fault, self._fault))(chance))
        self.pause(chance.uniform(0.0, GAP_SECONDS_MAX) if done else 0.0)
        self.door.clear()
        return done

    def _kill(self, chance: Random) -> str:
        """Kill one operator, which is replaced by a new process without in-memory state."""
        victim = self.running.pop(chance.randrange(len(self.running)))
        victim.stop(signal.SIGKILL)
        self.kills += 1
        if not self.running or chance.random() < 0.5:
            self.start_operator()
        return "operator killed"

    def _second(self, chance: Random) -> str:
        """Start a second operator, and stop one of the two gracefully."""
        if len(self.running) < OPERATORS_MAX:
            self.start_operator()
            return "second operator"
        self.running.pop(chance.randrange(len(self.running))).stop(signal.SIGTERM)
        return "operator stopped"

    def _fault(self, chance: Random) -> str:
        kind = chance.choice(FAULTS)
        self.faults[kind] = self.faults.get(kind, 0) + 1
        match kind:
            case "conflicts":
                self.door.answer(409, times=chance.randint(1, 8), methods=["PATCH", "PUT", "DELETE"])
            case "errors":
                self.door.answer(500, times=chance.randint(1, 20))
            case "lost answers":
                self.door.answer(500, times=chance.randint(1, 6), methods=["PATCH", "DELETE"], after=True)
            case "slow":
                self.door.delay(chance.uniform(0.1, 2.0), times=chance.randint(5, 40))
            case "flaky":
                self.door.answer(503, times=chance.randint(1, 10), methods=["GET"])
                self.door.answer(429, times=chance.randint(1, 5), methods=["PATCH"])
            case _:
                self.door.go_away()
        return f"API server: {kind}"

    # ---- invariants

    def broken_operators(self) -> list[str]:
        """Return violations by operators: an unexpected exit, or an unforeseen exception."""
        ended = [each for each in self.running if each.process.poll() is not None]
        found = [f"ended with {each.process.returncode}:\n{each.said()}" for each in ended]
        for operator in self.operators.started:
            lines = operator.log.read_text().splitlines()
            found += [line[:3000] for line in lines if any(each in line for each in UNFORESEEN)]
        return found

    def forbidden(self) -> list[str]:
        """Return the requests of operators that the API server forbade."""
        return [f"{event.verb} {event.uri}" for event in self.operators.forbidden(self.user, self.mark)]

    def restarts(self) -> set[str]:
        """Return the uids of pods that the operators deleted, each once."""
        writes = self.operators.writes(self.user, self.mark)
        return {
            (each.body or {}).get("preconditions", {}).get("uid", each.name)
            for each in writes
            if each.verb == "delete" and each.resource == "pods" and each.code < HTTP_ERROR
        }

    def look_at_permits(self) -> None:
        """Record the current permit to restart a broker, which remains valid until the next permit."""
        order = {"key": base64.b64encode(PERMIT_KEY).decode()}
        answer = urllib3.request("POST", f"{self.brokers.etcd[0]}/v3/kv/range", json=order, timeout=10.0)
        self.permits.update(str(each["mod_revision"]) for each in answer.json().get("kvs", []))

    def writes(self, mark: int) -> list[str]:
        """Return the writes of the operators since a mark, without renewals of their Lease."""
        return [f"{event.verb} {event.uri}: {event.body}" for event in self.operators.writes(self.user, mark)]

    # ---- current state

    def cluster(self) -> Manifest:
        """Return the current Cluster."""
        found = self.api.get(CLUSTER, self.namespace)
        assert found is not None, "the Cluster was deleted"
        return found

    def condition(self, type_: str) -> Manifest:
        """Return a condition of the Cluster for its current spec, {} when missing."""
        return condition_of(self.cluster(), type_)


@contextmanager
def edit_stage(kubernetes: Kubernetes, operators: Operators, folder: Path) -> Iterator[EditStage]:
    """Yield a namespace with one operator and without a Cluster."""
    namespace = kubernetes.namespace("edits")
    user = operators.grant(namespace)
    with kubernetes.door() as door, broker_processes(kubernetes.api, namespace, folder) as brokers:
        brokers.core = CORE
        kubeconfig = kubernetes.account_kubeconfig(ACCOUNT, namespace, server=door.server)
        mark = kubernetes.audit_mark()
        stage = EditStage(kubernetes, operators, door, namespace, brokers, user, kubeconfig, mark)
        stage.start_operator()
        try:
            yield stage
        finally:
            operators.stop_all()
