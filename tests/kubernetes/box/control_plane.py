"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler. `inside.py` uses this module inside the box."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from authority import PKI, Authority
from daemons import BIN, STATE, Daemon
from furnishing import CONTROL_PLANE_ADDRESS, FIRST_SERVICE_ADDRESS, SERVICE_RANGE

SERVER_PORT = 6443
SERVER = f"https://{CONTROL_PLANE_ADDRESS}:{SERVER_PORT}"
ETCD = "http://127.0.0.1:2379"
START_SECONDS = 90.0
# Users whose leases are heartbeats of Kubernetes itself and are left out of the audit log.
MACHINERY = ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "kwok"]
ADMISSION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            # Every namespace refuses what a hardened cluster would refuse, unless its labels allow it.
            "name": "PodSecurity",
            "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1",
                "kind": "PodSecurityConfiguration",
                "defaults": {
                    "enforce": "restricted",
                    "enforce-version": "latest",
                    "warn": "restricted",
                    "warn-version": "latest",
                },
                "exemptions": {"namespaces": ["kube-system"]},
            },
        }
    ],
}
_LEASES = [{"group": "coordination.k8s.io", "resources": ["leases"]}]
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]},
        {"level": "None", "users": MACHINERY, "resources": _LEASES},
        {"level": "None", "userGroups": ["system:nodes"], "resources": _LEASES},
        {"level": "Request", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "Metadata"},
    ],
}


def start(authority: Authority) -> None:
    """Start all four programs, and return when the API server is ready."""
    hosts = (
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        CONTROL_PLANE_ADDRESS,
        "127.0.0.1",
        FIRST_SERVICE_ADDRESS,
    )
    authority.certify("apiserver", "kube-apiserver", hosts=hosts)
    authority.certify("admin", "admin", "system:masters")
    authority.certify("kwok", "kwok", "system:masters")
    authority.certify("controllers", "system:kube-controller-manager")
    authority.certify("scheduler", "system:kube-scheduler")
    for name in ("kwok", "controllers", "scheduler"):
        authority.kubeconfig(name, SERVER)
    write("admission.json", ADMISSION)
    write("audit.json", AUDIT)
    Daemon("etcd").start(etcd_command())
    Daemon("kube-apiserver").start(api_server_command())
    wait_for_api_server()
    Daemon("kube-controller-manager").start(controllers_command())
    Daemon("kube-scheduler").start(
        [
            BIN / "kube-scheduler",
            f"--kubeconfig={STATE}/scheduler.kubeconfig",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ]
    )


def etcd_command() -> list[object]:
    """Return the command of etcd, which does not sync, because its data need not survive a power cut."""
    addresses = [f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}"]
    return [BIN / "etcd", f"--data-dir={STATE}/etcd", "--log-level=warn", *addresses, "--unsafe-no-fsync"]


def api_server_command() -> list[object]:
    """Return the command of the API server."""
    return [
        BIN / "kube-apiserver",
        f"--etcd-servers={ETCD}",
        f"--bind-address={CONTROL_PLANE_ADDRESS}",
        f"--secure-port={SERVER_PORT}",
        # The default is the address of the default route, which the box does not have. The address becomes the endpoint
        # of the service "kubernetes" and must not be a loopback address.
        f"--advertise-address={CONTROL_PLANE_ADDRESS}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--admission-control-config-file={STATE}/admission.json",
        f"--audit-policy-file={STATE}/audit.json",
        f"--audit-log-path={STATE}/log/audit.log",
        # The API server answers only after it has written the audit line, so tests may read the log immediately.
        "--audit-log-mode=blocking",
        # The audit log is never rotated, because tests read it from a mark.
        "--audit-log-maxsize=100000",
        f"--client-ca-file={PKI}/ca.crt",
        f"--tls-cert-file={PKI}/apiserver.crt",
        f"--tls-private-key-file={PKI}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI}/tokens.pub",
        f"--service-account-signing-key-file={PKI}/tokens.key",
        # Authority of the kubelets, which the API server calls for exec, logs and port-forward.
        f"--kubelet-certificate-authority={PKI}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={PKI}/admin.crt",
        f"--kubelet-client-key={PKI}/admin.key",
        "--profiling=false",
    ]


def controllers_command() -> list[object]:
    """Return the command of the controllers."""
    return [
        BIN / "kube-controller-manager",
        "--leader-elect=false",
        f"--kubeconfig={STATE}/controllers.kubeconfig",
        "--bind-address=127.0.0.1",
        # Claims on fake nodes are bound by the controllers; real pods get volumes from the harness.
        "--enable-hostpath-provisioner=true",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={PKI}/tokens.key",
        f"--root-ca-file={PKI}/ca.crt",
        f"--cluster-signing-cert-file={PKI}/ca.crt",
        f"--cluster-signing-key-file={PKI}/ca.key",
        # A killed kubelet is noticed in half the usual time.
        "--node-monitor-grace-period=25s",
        "--pvclaimbinder-sync-period=5s",
        "--concurrent-statefulset-syncs=10",
    ]


def wait_for_api_server() -> None:
    """Wait until the API server is ready; raise `NotReady` if it is not ready in time."""
    Daemon("kube-apiserver").wait_until(api_server_ready, START_SECONDS)


def api_server_ready() -> bool:
    """Return whether the API server is ready; raise `OSError` while the server does not listen."""
    context = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    connection = http.client.HTTPSConnection(CONTROL_PLANE_ADDRESS, SERVER_PORT, timeout=5, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    finally:
        connection.close()


def write(name: str, document: dict[str, Any]) -> Path:
    """Write a component's configuration file into the box's folder, as JSON, which is also YAML."""
    path = STATE / name
    path.write_text(json.dumps(document, indent=1))
    return path
