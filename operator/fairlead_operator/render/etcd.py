"""Objects of a managed etcd: the StatefulSet, a headless Service for the DNS names of members, and a client Service.

`plan.etcd` adds and removes members through etcd itself; this module renders the pods of the current plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_parts import ManagedEtcd
from fairlead_api.resources.quantities import quantity
from fairlead_operator.naming import (
    CONFIG_FOLDER,
    DATA_VOLUME,
    ETCD_AUTHORITIES_ANNOTATION,
    ETCD_CLIENT_PORT,
    ETCD_CLIENT_PORT_NAME,
    ETCD_COMPONENT,
    ETCD_CONTAINER,
    ETCD_DATA_PATH,
    ETCD_METRICS_PORT,
    ETCD_METRICS_PORT_NAME,
    ETCD_PEER_PORT,
    ETCD_PEER_PORT_NAME,
    ETCD_TLS_CLIENT_PORT,
    ETCD_TLS_CLIENT_PORT_NAME,
    ETCD_TLS_PEER_PORT,
    ETCD_TLS_PEER_PORT_NAME,
    ETCD_TRANSPORT_ANNOTATION,
    POD_SPEC_HASH_ANNOTATION,
    SERVICE,
    STATEFUL_SET,
    Manifest,
    etcd_name,
    etcd_peers_service_name,
    etcd_tls_name,
    owned_labels,
    pod_selector,
    service_account_name,
)
from fairlead_operator.render.brokers import claim_template
from fairlead_operator.render.etcd_restore import cluster_token, member_host, restore_parts
from fairlead_operator.render.fingerprints import pod_spec_hash, said
from fairlead_operator.render.inputs import (
    PLAIN_ETCD,
    EtcdInputs,
    EtcdPhase,
    EtcdTransport,
    Images,
    RenderInputs,
)
from fairlead_operator.render.metadata import framed
from fairlead_operator.render.pods import (
    PodParts,
    container_resources,
    container_security,
    http_probe,
    pod_security,
    pod_template,
    spread,
    temporary_mount,
    temporary_volume,
)
from fairlead_operator.render.services import service_port

INITIAL_CLUSTER: Final = "ETCD_INITIAL_CLUSTER"
INITIAL_STATE: Final = "ETCD_INITIAL_CLUSTER_STATE"
"""Environment variables that a pod with an empty volume needs to join etcd. Environment variables for joining are not
part of the fingerprint, since their values change with the members and have no effect on a running pod."""
TLS_VOLUME: Final = "tls"
TLS_FOLDER: Final = f"{CONFIG_FOLDER}-tls"
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - other pods call members
GRACE_SECONDS: Final = 30
"""Termination grace period, within which a member transfers its leadership and closes its store."""
REQUESTS: Final = {"cpu": "100m", "memory": "128Mi"}
"""Resource requests for a member if the spec sets no resources."""
COMPACTION: Final = ("--auto-compaction-mode=periodic", "--auto-compaction-retention=10m")
"""Retention of old revisions. Brokers receive changes within seconds; a broker that was down for longer than the
retention lists all keys again."""
QUOTA_BYTES_MAX: Final = 8 << 30
"""Largest store quota that etcd recommends."""
QUOTA_PARTS: Final = 2.5
"""Ratio of the volume size to the store quota: the volume contains the store, a snapshot for another member, and the
log."""
QUOTA_ARGUMENT: Final = "--quota-backend-bytes="
"""Command line argument with the store quota. The argument is not part of a pod's fingerprint: the plan restarts
members only if the quota grows, not if it shrinks."""


def etcd_objects(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return the StatefulSet and the Services of etcd; empty for an external etcd. Raises `TemplateRefused`."""
    managed = cluster.spec.etcd.managed
    if managed is None or inputs.etcd is None:
        return []
    phase = inputs.etcd.transport.phase
    return [_peers(cluster, phase), _clients(cluster, phase), _members(cluster, managed, inputs.etcd, inputs)]


def etcd_pod_hash(managed: ManagedEtcd, images: Images, transport: EtcdTransport = PLAIN_ETCD) -> str:
    """Return the fingerprint of the settings of etcd pods, with the authorities that etcd reads only at startup."""
    secure = {} if transport.phase == "plain" else {"tls": [transport.phase, transport.authorities]}
    return pod_spec_hash(
        {
            "image": images.etcd,
            "resources": said(managed.resources),
            "template": said(managed.template),
            **secure,
        }
    )


def etcd_ports(phase: EtcdPhase) -> tuple[list[int], list[int]]:
    """Return the ports of members for clients and for other members."""
    return [port for _, port in _client_ports(phase)], [port for _, port in _peer_ports(phase)]


def _client_ports(phase: EtcdPhase) -> list[tuple[str, int]]:
    return [
        *([(ETCD_CLIENT_PORT_NAME, ETCD_CLIENT_PORT)] if phase != "tls" else ()),
        *([(ETCD_TLS_CLIENT_PORT_NAME, ETCD_TLS_CLIENT_PORT)] if phase != "plain" else ()),
    ]


def _peer_ports(phase: EtcdPhase) -> list[tuple[str, int]]:
    return [
        *([(ETCD_PEER_PORT_NAME, ETCD_PEER_PORT)] if phase != "tls" else ()),
        *([(ETCD_TLS_PEER_PORT_NAME, ETCD_TLS_PEER_PORT)] if phase != "plain" else ()),
    ]


def _peers(cluster: Cluster, phase: EtcdPhase) -> Manifest:
    """Return the headless Service.

    The headless Service includes unready members, because a member must reach its peers before it becomes ready.
    """
    manifest = framed(cluster, SERVICE, etcd_peers_service_name(cluster.name), component=ETCD_COMPONENT)
    manifest["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": pod_selector(cluster.name, ETCD_COMPONENT),
        "ports": [service_port(*each) for each in (*_client_ports(phase), *_peer_ports(phase))],
    }
    return manifest


def _clients(cluster: Cluster, phase: EtcdPhase) -> Manifest:
    manifest = framed(cluster, SERVICE, etcd_name(cluster.name), component=ETCD_COMPONENT)
    manifest["spec"] = {
        "type": "ClusterIP",
        "selector": pod_selector(cluster.name, ETCD_COMPONENT),
        "ports": [service_port(*each) for each in _client_ports(phase)],
    }
    return manifest


def _members(cluster: Cluster, managed: ManagedEtcd, etcd: EtcdInputs, inputs: RenderInputs) -> Manifest:
    name = etcd_name(cluster.name)
    labels = owned_labels(cluster.name, ETCD_COMPONENT)
    manifest = framed(cluster, STATEFUL_SET, name, component=ETCD_COMPONENT)
    manifest["spec"] = {
        "replicas": etcd.replicas,
        "serviceName": etcd_peers_service_name(cluster.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": cluster.spec.claim_policy.when_deleted,
            # Only the plan deletes claims, and only claims of members that were removed from etcd.
            "whenScaled": "Retain",
        },
        "selector": {"matchLabels": pod_selector(cluster.name, ETCD_COMPONENT)},
        "template": pod_template(_parts(cluster, managed, etcd, inputs.images), managed.template),
        "volumeClaimTemplates": [claim_template(labels, managed.storage, inputs.storage.get(name))],
    }
    return manifest


def _parts(cluster: Cluster, managed: ManagedEtcd, etcd: EtcdInputs, images: Images) -> PodParts:
    snapshot = managed.restore if etcd.restores else None
    variables: list[Manifest] = [
        {
            "name": "POD_NAME",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        },
        {"name": INITIAL_CLUSTER, "value": etcd.initial_cluster},
        {"name": INITIAL_STATE, "value": etcd.state},
        *_tool_variables(etcd.transport.phase),
    ]
    volumes = [temporary_volume()]
    if etcd.transport.phase != "plain":
        volumes.append({"name": TLS_VOLUME, "secret": {"secretName": etcd_tls_name(cluster.name)}})
    return PodParts(
        labels=owned_labels(cluster.name, ETCD_COMPONENT),
        annotations={
            POD_SPEC_HASH_ANNOTATION: etcd_pod_hash(managed, images, etcd.transport),
            **_transport_annotations(etcd.transport),
        },
        spec={
            "serviceAccountName": service_account_name(cluster.name),
            "automountServiceAccountToken": False,
            # For a Cluster named `etcd`, the environment variables of its Services would begin with ETCD_, and etcd
            # would read these variables as settings.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": pod_security(),
            "topologySpreadConstraints": spread(pod_selector(cluster.name, ETCD_COMPONENT)),
            "containers": [_container(cluster, managed, variables, images, etcd)],
            "volumes": volumes,
            **({} if snapshot is None else restore_parts(cluster, snapshot, etcd, images, volumes)),
        },
        identity=frozenset(variable["name"] for variable in variables),
    )


def _transport_annotations(transport: EtcdTransport) -> dict[str, str]:
    if transport.phase == "plain":
        return {}
    return {
        ETCD_TRANSPORT_ANNOTATION: transport.phase,
        ETCD_AUTHORITIES_ANNOTATION: transport.authorities,
    }


def _tool_variables(phase: EtcdPhase) -> list[Manifest]:
    """Return the etcdctl settings for a pod with TLS listeners only: by default, etcdctl calls without TLS."""
    if phase != "tls":
        return []
    return [
        {"name": "ETCDCTL_ENDPOINTS", "value": f"https://localhost:{ETCD_TLS_CLIENT_PORT}"},
        {"name": "ETCDCTL_CACERT", "value": f"{TLS_FOLDER}/ca.crt"},
        {"name": "ETCDCTL_CERT", "value": f"{TLS_FOLDER}/tls.crt"},
        {"name": "ETCDCTL_KEY", "value": f"{TLS_FOLDER}/tls.key"},
    ]


def _container(
    cluster: Cluster, managed: ManagedEtcd, variables: list[Manifest], images: Images, etcd: EtcdInputs
) -> Manifest:
    phase = etcd.transport.phase
    mounts: list[Manifest] = [{"name": DATA_VOLUME, "mountPath": ETCD_DATA_PATH}, temporary_mount()]
    if phase != "plain":
        mounts.append({"name": TLS_VOLUME, "mountPath": TLS_FOLDER, "readOnly": True})
    return {
        "name": ETCD_CONTAINER,
        "image": images.etcd,
        "command": ["etcd"],
        "args": _arguments(cluster, etcd.transport, _quota_bytes(managed, etcd)),
        "env": variables,
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in (
                *_client_ports(phase),
                *_peer_ports(phase),
                (ETCD_METRICS_PORT_NAME, ETCD_METRICS_PORT),
            )
        ],
        **container_resources(ETCD_CONTAINER, managed.resources, managed.template, REQUESTS),
        "readinessProbe": http_probe("/readyz", ETCD_METRICS_PORT_NAME, period_seconds=5, failures=3),
        "livenessProbe": http_probe("/livez", ETCD_METRICS_PORT_NAME, period_seconds=10, failures=8),
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def quota_argument(arguments: Sequence[str]) -> int:
    """Return the store quota in a container's arguments in bytes; 0 if no quota is set."""
    argument = next((each for each in arguments if each.startswith(QUOTA_ARGUMENT)), "")
    number = argument.removeprefix(QUOTA_ARGUMENT)
    return int(number) if number.isdigit() else 0


def _arguments(cluster: Cluster, transport: EtcdTransport, quota_bytes: int) -> list[str]:
    host = member_host(cluster)
    phase = transport.phase
    peer_port = ETCD_PEER_PORT if transport.peer_scheme == "http" else ETCD_TLS_PEER_PORT
    return [
        "--name=$(POD_NAME)",
        # The data is stored in a subfolder, since the root of the volume may contain a lost+found folder.
        f"--data-dir={ETCD_DATA_PATH}/data",
        f"--listen-client-urls={_urls(EVERY_ADDRESS, _client_ports(phase))}",
        f"--advertise-client-urls={_urls(host, _client_ports(phase))}",
        f"--listen-peer-urls={_urls(EVERY_ADDRESS, _peer_ports(phase))}",
        f"--initial-advertise-peer-urls={transport.peer_scheme}://{host}:{peer_port}",
        f"--listen-metrics-urls=http://0.0.0.0:{ETCD_METRICS_PORT}",
        f"--initial-cluster-token={cluster_token(cluster)}",
        f"{QUOTA_ARGUMENT}{quota_bytes}",
        *COMPACTION,
        *(secure_arguments(TLS_FOLDER) if phase != "plain" else ()),
    ]


def secure_arguments(folder: str) -> list[str]:
    """Return the arguments of a member with TLS (rule T15): clients and peers need a certificate of the authority."""
    files = (("cert-file", "tls.crt"), ("key-file", "tls.key"), ("trusted-ca-file", "ca.crt"))
    return [
        *(f"--{prefix}{option}={folder}/{file}" for prefix in ("", "peer-") for option, file in files),
        "--client-cert-auth",
        "--peer-client-cert-auth",
        # The authority signs only for this cluster. etcd would check the SANs of a client certificate by a reverse
        # lookup of each address.
        "--peer-skip-client-san-verification",
        "--tls-min-version=TLS1.3",
    ]


def _urls(host: str, ports: list[tuple[str, int]]) -> str:
    tls = {ETCD_TLS_CLIENT_PORT, ETCD_TLS_PEER_PORT}
    return ",".join(f"{'https' if port in tls else 'http'}://{host}:{port}" for _, port in ports)


def _quota_bytes(managed: ManagedEtcd, etcd: EtcdInputs) -> int:
    """Return the store quota for the smallest volume, since some volumes may not have been enlarged yet."""
    return quota_of(quantity(managed.storage.size), etcd.volume_bytes)


def quota_of(asked_bytes: Fraction, volume_bytes: int | None) -> int:
    """Return the store quota for the desired size of the volumes and the size of the smallest existing volume."""
    size = asked_bytes if volume_bytes is None else min(asked_bytes, Fraction(volume_bytes))
    return min(QUOTA_BYTES_MAX, int(size / QUOTA_PARTS))
