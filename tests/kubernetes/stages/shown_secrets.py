"""Search of everything that a Cluster on pods shows for the texts of its secrets (proof V18).

Shown are logs, events, metrics, and resources with their status. Secrets are the tokens and private keys in the
Secrets of the namespace, and the tokens that the kubelets mount into the pods of brokers.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cluster_words import BROKERS
from operator_process import ASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pods_stage import PodsStage

KINDS = (
    "clusters.fairlead.dev", "users.fairlead.dev", "topics.fairlead.dev", "pods", "configmaps", "services", "events",
)  # fmt: skip
MISPLACED = """
import ssl, sys, urllib.error, urllib.request
url, token = sys.argv[1:]
for path, headers in (
    (f"/v1/whoami?token={token}", {}),
    ("/v1/whoami", {"authorization": f"Basic {token}"}),
    ("/v1/whoami", {"authorization": f"Bearer {token}x"}),
    ("/v1/whoami", {"cookie": f"token={token}", "fairlead-broker-proof": token, "fairlead-caller": token}),
):
    try:
        urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=30,
                               context=ssl._create_unverified_context())
    except urllib.error.HTTPError as refusal:
        print(refusal.code, refusal.headers, refusal.read().decode())
    else:
        raise SystemExit(f"{path} was accepted")
"""
"""A program that sends a token in each wrong place and prints the answers."""


def secrets_of(stage: PodsStage) -> dict[str, str]:
    """Return the secret texts of a Cluster by their places: the secret part of a token, a line of a private key."""
    found = {}
    for secret in stage.kubernetes.api.list("secrets", stage.namespace):
        for name, encoded in secret.get("data", {}).items():
            text = base64.b64decode(encoded).decode("latin-1")
            place = f"{secret['metadata']['name']}/{name}"
            if "PRIVATE KEY" in text:
                found[place] = text.splitlines()[1]
            elif text.startswith("flt_"):
                found[place] = text.strip().rpartition("_")[2][:43]
    return {**found, **{place: token.rpartition(".")[2] for place, token in mounted_tokens(stage).items()}}


def mounted_tokens(stage: PodsStage) -> dict[str, str]:
    """Return the tokens of service accounts in the pods of brokers, by their places."""
    found = {}
    for pod in stage.pods():
        for pid in stage.kubernetes.processes_of(pod, stage.namespace):
            for file in (Path(f"/proc/{pid}/root") / "var/run/secrets").glob("**/token"):
                found[f"{pod}{str(file).partition('/root')[2]}"] = file.read_text()
    return found


def outputs_of(stage: PodsStage) -> Iterator[tuple[str, str]]:
    """Yield everything that a Cluster and its operators show, each with its source."""
    kubernetes, namespace = stage.kubernetes, stage.namespace
    for kind in KINDS:
        yield kind, json.dumps(kubernetes.api.list(kind, namespace))
    for pod in kubernetes.api.list("pods", namespace):
        name = pod["metadata"]["name"]
        yield f"log of {name}", kubernetes.logs(name, namespace)
    for pod in kubernetes.api.list("pods", namespace, BROKERS):
        url = f"http://{pod['status']['podIP']}:9522/metrics"
        yield f"metrics of {pod['metadata']['name']}", kubernetes.run(sys.executable, "-c", ASK, url).stdout
    for operator in stage.operators.started:
        yield str(operator.log), operator.log.read_text()
    yield "metrics of the operator", stage.operators.ask(stage.operator, "/metrics")


def shown_secrets(stage: PodsStage, url: str, token: str, earlier: dict[str, str]) -> list[tuple[str, str]]:
    """Send a token in wrong places, and return the place of each shown secret with the output that shows it.

    `earlier`: secrets that have been replaced since.
    """
    secrets = {**{f"earlier {place}": text for place, text in earlier.items()}, **secrets_of(stage)}
    assert {"load/token", "main-brokers-tls/tls.key"} <= secrets.keys(), secrets.keys()
    assert any(place.startswith("main-a-") for place in secrets), secrets.keys()
    answers = stage.kubernetes.run(sys.executable, "-c", MISPLACED, url, token).stdout
    outputs = [("answers", answers), *outputs_of(stage)]
    return [(place, source) for place, text in secrets.items() for source, shown in outputs if text in shown]
