"""StatefulSet for a broker pool, and the ConfigMap for all brokers."""

from __future__ import annotations

from typing import Any, Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_parts import BrokerPool, Storage
from fairlead_operator.naming import (
    BROKER_COMPONENT,
    BROKER_CONTAINER,
    CONFIG_FILE,
    CONFIG_FOLDER,
    CONFIG_MAP,
    CONFIG_VOLUME,
    DATA_PATH,
    DATA_PORT,
    DATA_PORT_NAME,
    DATA_VOLUME,
    ETCD_SCHEME_ANNOTATION,
    EXTERNAL_PORT,
    EXTERNAL_PORT_NAME,
    KAFKA_PORT,
    KAFKA_PORT_NAME,
    OPS_PORT,
    OPS_PORT_NAME,
    PEER_PORT,
    PEER_PORT_NAME,
    PEER_SCHEME_ANNOTATION,
    POD_INDEX_LABEL,
    POD_SPEC_HASH_ANNOTATION,
    RESTART_CONFIG_HASH_ANNOTATION,
    SECURITY_FLOOR_ANNOTATION,
    STATEFUL_SET,
    TLS_PORT,
    TLS_PORT_NAME,
    TLS_ROUTE,
    ZONE_LABEL,
    Manifest,
    Scheme,
    brokers_service_name,
    config_map_name,
    etcd_client_name,
    etcd_client_url,
    owned_labels,
    pod_selector,
    pool_set_name,
    service_account_name,
)
from fairlead_operator.render import links, security
from fairlead_operator.render.addresses import (
    advertise_template,
    external_template,
    internal_host,
    kafka_template,
    serves_tls,
)
from fairlead_operator.render.configuration import broker_file, split_config
from fairlead_operator.render.fingerprints import pod_spec_hash, restart_config_hash, said
from fairlead_operator.render.inputs import RenderInputs
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

GRACE_SECONDS: Final = 120
"""Termination grace period, within which the broker hands over its leaderships and answers open calls."""
HANDOVER_SECONDS: Final = 60
"""Part of the grace period, in seconds, for the restart permit and the handover of leaderships."""
REQUESTS: Final = {"cpu": "250m", "memory": "512Mi"}
"""Resource requests for a broker whose pool sets no resources. A node that runs out of memory evicts pods without
requests first. The resource requests exceed the needs of an idle broker, but a trial cluster still fits on one node."""
EVERY_ADDRESS: Final = security.EVERY_ADDRESS
"""Listen address of brokers for both IPv4 and IPv6. The address `0.0.0.0` would not work in IPv6 clusters."""
ETCD_SECRET_FOLDER: Final = f"{CONFIG_FOLDER}-etcd"
ETCD_SECRET_VOLUME: Final = "etcd-credentials"  # noqa: S105 - the name of a volume


def config_map(cluster: Cluster, inputs: RenderInputs) -> Manifest:
    """Return the ConfigMap that contains the brokers' configuration file."""
    manifest = framed(cluster, CONFIG_MAP, config_map_name(cluster.name), component=BROKER_COMPONENT)
    return {**manifest, "data": {CONFIG_FILE: broker_file(cluster, inputs)}}


def broker_set(cluster: Cluster, pool: BrokerPool, inputs: RenderInputs) -> Manifest:
    """Return the StatefulSet of a pool.

    The brokers of a pool start in parallel, and only the operator restarts brokers.

    Raises `TemplateRefused`.
    """
    name = pool_set_name(cluster.name, pool.name)
    manifest = framed(cluster, STATEFUL_SET, name, component=BROKER_COMPONENT, pool=pool.name)
    selector = pod_selector(cluster.name, BROKER_COMPONENT, pool.name)
    policy = cluster.spec.claim_policy
    manifest["spec"] = {
        "replicas": inputs.pool_replicas.get(pool.name, pool.replicas),
        "ordinals": {"start": pool.first_broker_id},
        "serviceName": brokers_service_name(cluster.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": policy.when_deleted,
            "whenScaled": policy.when_scaled,
        },
        "selector": {"matchLabels": selector},
        "template": pod_template(_parts(cluster, pool, inputs), pool.template),
        "volumeClaimTemplates": [
            claim_template(
                owned_labels(cluster.name, BROKER_COMPONENT, pool.name),
                pool.storage,
                inputs.storage.get(name),
            )
        ],
    }
    return manifest


def claim_template(labels: dict[str, str], storage: Storage, size: str | None) -> Manifest:
    """Return the claim template; `size` overrides the spec while the live StatefulSet has a different size."""
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size or storage.size}},
    }
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": DATA_VOLUME, "labels": labels},
        "spec": spec,
    }


def broker_pod_hash(cluster: Cluster, pool: BrokerPool, inputs: RenderInputs) -> str:
    """Return a fingerprint of the Cluster fields that affect a pool's pods."""
    return pod_spec_hash(
        {
            "image": inputs.images.broker,
            "resources": said(pool.resources),
            "template": said(pool.template),
            "advertised": cluster.spec.listeners.data.advertised_host,
            "proxy": _proxy_scheme(cluster),
            **({"kafka": kafka_template(cluster)} if cluster.spec.listeners.kafka.enabled else {}),
            "etcd": said(cluster.spec.etcd.external),
            **({"etcd-tls": True} if _calls_etcd_by_tls(inputs) else {}),
            **security.pod_words(cluster, inputs.transport),
        }
    )


def _parts(cluster: Cluster, pool: BrokerPool, inputs: RenderInputs) -> PodParts:
    variables = _with_security(_identity(cluster), cluster, inputs) + _etcd(cluster, inputs)
    restart = split_config(cluster.spec.config).restart
    return PodParts(
        labels=owned_labels(cluster.name, BROKER_COMPONENT, pool.name),
        annotations={
            POD_SPEC_HASH_ANNOTATION: broker_pod_hash(cluster, pool, inputs),
            RESTART_CONFIG_HASH_ANNOTATION: restart_config_hash(restart),
            **_security_annotations(cluster, inputs),
            **({ETCD_SCHEME_ANNOTATION: "https"} if _calls_etcd_by_tls(inputs) else {}),
        },
        spec={
            "serviceAccountName": service_account_name(cluster.name),
            "automountServiceAccountToken": False,
            # For a Cluster named `fairlead`, the environment variables of its Services would begin with FAIRLEAD_, and
            # brokers would read these variables as settings.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": pod_security(),
            "topologySpreadConstraints": spread(pod_selector(cluster.name, BROKER_COMPONENT)),
            "containers": [_container(cluster, pool, inputs, variables)],
            "volumes": _volumes(cluster, inputs),
        },
        identity=frozenset(variable["name"] for variable in variables),
    )


def _container(
    cluster: Cluster, pool: BrokerPool, inputs: RenderInputs, variables: list[Manifest]
) -> Manifest:
    scheme = "http" if inputs.transport is None else security.ops_scheme(cluster.spec.security)
    return {
        "name": BROKER_CONTAINER,
        "image": inputs.images.broker,
        "args": ["broker", "start", "--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}"],
        "env": variables,
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in (
                (DATA_PORT_NAME, DATA_PORT),
                (PEER_PORT_NAME, PEER_PORT),
                (OPS_PORT_NAME, OPS_PORT),
                (EXTERNAL_PORT_NAME, EXTERNAL_PORT),
                *([(TLS_PORT_NAME, TLS_PORT)] if serves_tls(cluster) else ()),
                *([(KAFKA_PORT_NAME, KAFKA_PORT)] if cluster.spec.listeners.kafka.enabled else ()),
            )
        ],
        **container_resources(BROKER_CONTAINER, pool.resources, pool.template, REQUESTS),
        # A broker is ready when it has caught up with the leaders. A broker is alive while its process answers, even
        # during a long recovery.
        "readinessProbe": http_probe("/readyz", OPS_PORT_NAME, period_seconds=5, failures=2, scheme=scheme),
        "livenessProbe": http_probe("/healthz", OPS_PORT_NAME, period_seconds=10, failures=6, scheme=scheme),
        "lifecycle": {"preStop": {"exec": {"command": _before_stop()}}},
        "securityContext": container_security(),
        "volumeMounts": _mounts(cluster, inputs),
    }


def _before_stop() -> list[str]:
    return ["fairlead", "broker", "prepare-stop", "--seconds", str(HANDOVER_SECONDS)]


def _proxy_scheme(cluster: Cluster) -> str | None:
    """Return the scheme of the proxy in front of the brokers; None if TLS ends at the brokers, as with a TLSRoute."""
    route = cluster.spec.listeners.data.route
    return None if route is None or route.kind == TLS_ROUTE.kind else route.scheme


def _identity(cluster: Cluster) -> list[Manifest]:
    external, proxy = external_template(cluster), _proxy_scheme(cluster)
    return [
        _field("POD_NAME", "metadata.name"),
        _field("POD_NAMESPACE", "metadata.namespace"),
        _field("POD_IP", "status.podIP"),
        _field("NODE_IP", "status.hostIP"),
        _field("FAIRLEAD_ID", f"metadata.labels['{POD_INDEX_LABEL}']"),
        _field("FAIRLEAD_RACK", f"metadata.labels['{ZONE_LABEL}']"),
        _value("FAIRLEAD_DATA", DATA_PATH),
        _value("FAIRLEAD_LISTEN", f"{EVERY_ADDRESS}:{DATA_PORT}"),
        _value("FAIRLEAD_PEER_LISTEN", f"{EVERY_ADDRESS}:{PEER_PORT}"),
        _value("FAIRLEAD_OPS_LISTEN", f"{EVERY_ADDRESS}:{OPS_PORT}"),
        _value("FAIRLEAD_SECURITY", "open"),
        _value("FAIRLEAD_LINK_CREDENTIALS", links.FOLDER),
        _value("FAIRLEAD_EXTERNAL_LISTEN", f"{EVERY_ADDRESS}:{EXTERNAL_PORT}"),
        _value("FAIRLEAD_ADVERTISE", advertise_template(cluster)),
        *([] if external is None else [_value("FAIRLEAD_EXTERNAL_ADVERTISE", external)]),
        *([] if proxy is None else [_value("FAIRLEAD_EXTERNAL_SCHEME", proxy)]),
        _value("FAIRLEAD_PEER_ADVERTISE", f"{internal_host(cluster)}:{PEER_PORT}"),
        *_kafka(cluster),
    ]


def _kafka(cluster: Cluster) -> list[Manifest]:
    if not cluster.spec.listeners.kafka.enabled:
        return []
    return [
        _value("FAIRLEAD_KAFKA_LISTEN", f"{EVERY_ADDRESS}:{KAFKA_PORT}"),
        _value("FAIRLEAD_KAFKA_ADVERTISE", kafka_template(cluster)),
    ]


def _with_security(variables: list[Manifest], cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return the variables merged with the variables for security, which replace variables of the same name."""
    if inputs.transport is None:
        return variables
    chosen = dict(security.settings(cluster, inputs.transport))
    if serves_tls(cluster):
        chosen["FAIRLEAD_ADVERTISE_TLS"] = advertise_template(cluster, tls=True)
    kept = [
        _value(each["name"], chosen.pop(each["name"])) if each["name"] in chosen else each
        for each in variables
    ]
    return [*kept, *(_value(name, value) for name, value in chosen.items())]


def _security_annotations(cluster: Cluster, inputs: RenderInputs) -> dict[str, str]:
    if inputs.transport is None:
        return {}
    return {
        PEER_SCHEME_ANNOTATION: inputs.transport.peer_scheme,
        SECURITY_FLOOR_ANNOTATION: security.floor_of(cluster.spec.security),
    }


def _calls_etcd_by_tls(inputs: RenderInputs) -> bool:
    """Return whether brokers call a managed etcd over TLS."""
    return inputs.etcd is not None and inputs.etcd.transport.client_scheme == "https"


def _etcd(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    managed, external = cluster.spec.etcd.managed, cluster.spec.etcd.external
    if managed is not None:
        # FAIRLEAD_ETCD lists each member by name, so that the broker can leave an unresponsive member for another
        # member. The Service at the end of the list also reaches members that are added after the broker has started.
        scheme: Scheme = "https" if _calls_etcd_by_tls(inputs) else "http"
        urls = [
            etcd_client_url(cluster.namespace, cluster.name, member, scheme=scheme)
            for member in (*range(managed.replicas), None)
        ]
        addresses = [_value("FAIRLEAD_ETCD", ",".join(urls))]
        if scheme == "https":
            addresses.append(_value("FAIRLEAD_ETCD_CREDENTIALS", ETCD_SECRET_FOLDER))
        return addresses
    assert external is not None, "a Cluster has a managed or an external etcd"
    variables = [_value("FAIRLEAD_ETCD", ",".join(external.endpoints))]
    if external.secret_name is not None:
        variables.append(_value("FAIRLEAD_ETCD_CREDENTIALS", ETCD_SECRET_FOLDER))
    return variables


def _volumes(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": config_map_name(cluster.name)}},
        links.credentials_volume(cluster),
    ]
    credentials = _etcd_secret(cluster, inputs)
    if credentials is not None:
        volumes.append({"name": ETCD_SECRET_VOLUME, "secret": {"secretName": credentials}})
    if inputs.transport is not None:
        volumes += [volume for volume, _ in security.volumes(cluster)]
    return [*volumes, temporary_volume()]


def _etcd_secret(cluster: Cluster, inputs: RenderInputs) -> str | None:
    """Return the name of the Secret with the credentials for etcd; None for an etcd without credentials."""
    external = cluster.spec.etcd.external
    if external is not None:
        return external.secret_name
    return etcd_client_name(cluster.name) if _calls_etcd_by_tls(inputs) else None


def _mounts(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    mounts: list[Manifest] = [
        {"name": DATA_VOLUME, "mountPath": DATA_PATH},
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER, "readOnly": True},
        links.credentials_mount(),
    ]
    if _etcd_secret(cluster, inputs) is not None:
        mounts.append({"name": ETCD_SECRET_VOLUME, "mountPath": ETCD_SECRET_FOLDER, "readOnly": True})
    if inputs.transport is not None:
        mounts += [
            {"name": volume["name"], "mountPath": folder, "readOnly": True}
            for volume, folder in security.volumes(cluster)
        ]
    return [*mounts, temporary_mount()]


def _field(name: str, path: str) -> Manifest:
    source: dict[str, Any] = {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}
    return {"name": name, "valueFrom": source}


def _value(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}
