"""Certificates for clients that cert-manager signs, on real pods: issue, renewal, further names, and the way back.

The controllers of cert-manager run beside the API server, and sign with an authority of their own.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from go_programs import module_folder, program
from operator_process import is_established
from pods_stage import PodsStage, keep_counts, pods_stage
from secured_clients import CLOSED, LONG_SECONDS, Access, a_load, load_topic, wait_for

if TYPE_CHECKING:
    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes
    from pods import KubernetesPods

pytestmark = [pytest.mark.timeout(1400), pytest.mark.scenario]

API = "cert-manager.io/v1"
ISSUER = "corp"
RIGHT = "certManager.enabled=true"
CERTIFICATE = "certificates.cert-manager.io/main-clients-tls"
OF_ISSUER, OF_OPERATOR = "main-clients-tls", "main-brokers-tls"
"""Secrets with the certificate for clients, with an issuer and without."""
LEAF = "import ssl, sys; print(ssl.get_server_certificate((sys.argv[1], 9520)))"
FURTHER_NAME = "further.example"


def objects(namespace: str) -> list[Manifest]:
    """Return an authority that signs itself, in a namespace, and the ClusterIssuer that signs with its key."""
    root = {"name": "root", "kind": "Issuer"}
    own = {"isCA": True, "commonName": ISSUER, "secretName": ISSUER, "issuerRef": root}
    return [
        {"apiVersion": API, "kind": "Issuer", "metadata": {"name": "root", "namespace": namespace},
         "spec": {"selfSigned": {}}},
        {"apiVersion": API, "kind": "Certificate", "metadata": {"name": ISSUER, "namespace": namespace}, "spec": own},
        {"apiVersion": API, "kind": "ClusterIssuer", "metadata": {"name": ISSUER},
         "spec": {"ca": {"secretName": ISSUER}}},
    ]  # fmt: skip


def is_ready(found: Manifest | None) -> bool:
    """Return whether an object of cert-manager is ready."""
    conditions = [] if found is None else found.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@contextmanager
def cert_manager(kubernetes: Kubernetes) -> Iterator[None]:
    """Run cert-manager with the ClusterIssuer `corp`."""
    folder = module_folder("cert-manager", "github.com/cert-manager/cert-manager")
    for path in sorted((folder / "deploy/crds").glob("*.yaml")):
        (made,) = kubernetes.api.apply(yaml.load(path.read_text(), Loader=yaml.CSafeLoader))
        kubernetes.api.wait(f"customresourcedefinition/{made['metadata']['name']}", None, is_established)
    namespace = kubernetes.namespace("cert-manager")
    options = [f"--kubeconfig={kubernetes.kubeconfig}", f"--cluster-resource-namespace={namespace}"]
    with subprocess.Popen([*kubernetes.enter, str(program("cert-manager")), *options]) as process:
        try:
            kubernetes.api.apply(objects(namespace))
            kubernetes.api.wait(f"clusterissuers.cert-manager.io/{ISSUER}", None, is_ready)
            yield
        finally:
            process.kill()
            kubernetes.api.delete(f"clusterissuers.cert-manager.io/{ISSUER}")


def secret_leaf(stage: PodsStage, secret: str) -> str:
    """Return the certificate in a Secret, without the authorities that follow it."""
    found: Any = stage.kubernetes.api.get(f"secret/{secret}", stage.namespace)
    return base64.b64decode(found["data"]["tls.crt"]).decode().partition("\n-----END")[0]


def served_leaf(stage: PodsStage, pod: str) -> str:
    """Return the certificate that a broker presents to clients; empty if the broker does not answer."""
    host = f"{pod}.main-brokers.{stage.namespace}.svc"
    answer = stage.kubernetes.run(sys.executable, "-c", LEAF, host, check=False).stdout
    return answer.partition("\n-----END")[0]


def wait_served(stage: PodsStage, secret: str, before: str = "") -> str:
    """Wait until all brokers present the certificate of a Secret, and no longer the previous one; return it."""

    def is_served() -> bool:
        leaf = secret_leaf(stage, secret)
        return leaf != before and [served_leaf(stage, pod) for pod in stage.pods()] == [leaf] * 3

    wait_for(is_served)
    return secret_leaf(stage, secret)


def renew(stage: PodsStage) -> None:
    """Let cert-manager issue the certificate again, as `cmctl renew` does."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renew",
                 "lastTransitionTime": now}  # fmt: skip
    found: Any = stage.kubernetes.api.get(CERTIFICATE, stage.namespace)
    conditions = [each for each in found["status"]["conditions"] if each["type"] != "Issuing"]
    stage.kubernetes.api.patch(
        CERTIFICATE,
        stage.namespace,
        {"status": {"conditions": [*conditions, condition]}},
        subresource="status",
    )


def test_cert_manager_signs_and_renews_the_certificate_for_clients(
    kubernetes_pods: KubernetesPods, tmp_path: Path
) -> None:
    """A Cluster changes to an issuer and back without a lost write, and brokers load renewals without a restart."""
    with (
        cert_manager(kubernetes_pods),
        pods_stage(kubernetes_pods, tmp_path, chart_values=(RIGHT,), security=CLOSED) as stage,
    ):
        url = stage.bootstrap.replace("http:", "https:")
        topic, access = load_topic(stage, "load-issuer"), Access(stage, tmp_path)
        with access.followed(), a_load(stage, url, topic, access) as load:
            issuer = {"issuerRef": {"name": ISSUER, "kind": "ClusterIssuer"}}
            stage.set("security/tls/certificate", issuer)
            stage.kubernetes.api.wait(CERTIFICATE, stage.namespace, is_ready, LONG_SECONDS)
            first = wait_served(stage, OF_ISSUER)
            stage.wait_done()
            pods = stage.pods()
            renew(stage)
            second = wait_served(stage, OF_ISSUER, first)
            stage.set("security/tls/extraNames", [FURTHER_NAME])
            third = wait_served(stage, OF_ISSUER, second)
            kept = stage.pods()
            stage.change({"op": "remove", "path": "/spec/security/tls/certificate"})
            wait_served(stage, OF_OPERATOR)
            stage.kubernetes.api.wait(CERTIFICATE, stage.namespace, lambda each: each is None, LONG_SECONDS)
            stage.wait_done()
    keep_counts("certificates of cert-manager", **load.counts, certificates=len({first, second, third}))

    assert load.losses == {}
    assert load.counts["acknowledged"] > 0
    assert kept == pods, "no broker restarts for a renewed certificate"
