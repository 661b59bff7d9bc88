"""The console of a Cluster: Deployment, Service and route. Its NetworkPolicy is in `policies`.

The console has no identity of its own: it forwards the identities of the people that have signed in, so its pod has no
token. Its options are arguments of the container, so the user's template can add only options that the spec leaves out.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_console import Console
from fairlead_operator.naming import (
    CONFIG_FOLDER,
    CONSOLE_COMPONENT,
    CONSOLE_CONTAINER,
    CONSOLE_PORT,
    DATA_PORT_NAME,
    DEPLOYMENT,
    SERVICE,
    Manifest,
    authority_name,
    console_name,
    owned_labels,
    pod_selector,
    service_account_name,
)
from fairlead_operator.render.addresses import bootstrap_address, data_scheme
from fairlead_operator.render.inputs import RenderInputs
from fairlead_operator.render.metadata import framed
from fairlead_operator.render.pods import (
    PodParts,
    container_resources,
    container_security,
    http_probe,
    pod_security,
    pod_template,
    temporary_mount,
    temporary_volume,
)
from fairlead_operator.render.routes import missing_kind, route_objects
from fairlead_operator.render.security import BUNDLE_FILE, EVERY_ADDRESS, TOKEN_FOLDER
from fairlead_operator.render.services import service_port

GRACE_SECONDS: Final = 10
"""Termination grace period of the pod; a stopping console waits two seconds for open answers."""
REQUESTS: Final = {"cpu": "50m", "memory": "128Mi"}
"""Resource requests for a console for which the spec sets no resources."""
ISSUER_FOLDER: Final = f"{CONFIG_FOLDER}-issuer-ca"
CLIENT_FOLDER: Final = f"{CONFIG_FOLDER}-oidc"
SESSION_FOLDER: Final = f"{CONFIG_FOLDER}-session"
CLIENT_SECRET: Final = "client-secret"  # noqa: S105 - a key of a Secret
SESSION_KEY: Final = "session-key"


def console_objects(cluster: Cluster, console: Console, inputs: RenderInputs) -> list[Manifest]:
    """Return the Deployment, the Service and the route of the console. Raises `TemplateRefused`."""
    name, objects = console_name(cluster.name), [_service(cluster), _deployment(cluster, console, inputs)]
    if console.route is not None and not missing_kind(console.route, inputs.kinds):
        hosts = {name: console.route.host}
        objects += route_objects(cluster, console.route, hosts, CONSOLE_PORT, CONSOLE_COMPONENT)
    return objects


def _service(cluster: Cluster) -> Manifest:
    manifest = framed(cluster, SERVICE, console_name(cluster.name), component=CONSOLE_COMPONENT)
    manifest["spec"] = {
        "type": "ClusterIP",
        "selector": pod_selector(cluster.name, CONSOLE_COMPONENT),
        "ports": [service_port(DATA_PORT_NAME, CONSOLE_PORT)],
    }
    return manifest


def _deployment(cluster: Cluster, console: Console, inputs: RenderInputs) -> Manifest:
    manifest = framed(cluster, DEPLOYMENT, console_name(cluster.name), component=CONSOLE_COMPONENT)
    volumes = _volumes(cluster, console)
    parts = PodParts(
        labels=owned_labels(cluster.name, CONSOLE_COMPONENT),
        annotations={},
        spec={
            "serviceAccountName": service_account_name(cluster.name),
            "automountServiceAccountToken": False,
            # For a Cluster named `fairlead`, the environment variables of its Services would begin with FAIRLEAD_.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": pod_security(),
            "containers": [_container(cluster, console, inputs, volumes)],
            "volumes": [*(volume for volume, _ in volumes), temporary_volume()],
        },
    )
    manifest["spec"] = {
        "replicas": 1,
        "selector": {"matchLabels": pod_selector(cluster.name, CONSOLE_COMPONENT)},
        "template": pod_template(parts, console.template),
    }
    return manifest


def _container(
    cluster: Cluster, console: Console, inputs: RenderInputs, volumes: list[tuple[Manifest, str]]
) -> Manifest:
    mounts = [{"name": each["name"], "mountPath": folder, "readOnly": True} for each, folder in volumes]
    return {
        "name": CONSOLE_CONTAINER,
        "image": inputs.images.broker,
        "args": ["console", *_options(cluster, console)],
        "env": [],
        "ports": [{"name": DATA_PORT_NAME, "containerPort": CONSOLE_PORT, "protocol": "TCP"}],
        **container_resources(CONSOLE_CONTAINER, console.resources, console.template, REQUESTS),
        "readinessProbe": http_probe("/healthz", DATA_PORT_NAME, period_seconds=5, failures=2),
        "livenessProbe": http_probe("/healthz", DATA_PORT_NAME, period_seconds=10, failures=6),
        "securityContext": container_security(),
        "volumeMounts": [*mounts, temporary_mount()],
    }


def _options(cluster: Cluster, console: Console) -> list[str]:
    options = [f"--bootstrap={bootstrap_address(cluster)}", f"--listen={EVERY_ADDRESS}:{CONSOLE_PORT}"]
    if console.read_only:
        options.append("--read-only")
    options += [f"--hide-records={each}" for each in console.hide_records]
    if (route := console.route) is not None:
        port = "" if route.port is None else f":{route.port}"
        options.append(f"--public-url={route.scheme}://{route.host}{port}")
    if console.session_secret_name is not None:
        options.append(f"--session-key-file={SESSION_FOLDER}/{SESSION_KEY}")
    if (oidc := console.oidc) is not None:
        options += [f"--oidc-issuer={oidc.issuer}", f"--oidc-client-id={oidc.client_id}"]
        if oidc.client_secret_name is not None:
            options.append(f"--oidc-client-secret-file={CLIENT_FOLDER}/{CLIENT_SECRET}")
        if oidc.ca_config_map is not None:
            options.append(f"--oidc-ca-file={ISSUER_FOLDER}/{BUNDLE_FILE}")
    return options


def _volumes(cluster: Cluster, console: Console) -> list[tuple[Manifest, str]]:
    """Return the volumes of the pod, each with its folder."""
    found: list[tuple[Manifest, str]] = []
    if data_scheme(cluster) == "https":
        # The console finds the file `ca.crt` in this folder without an option.
        found.append((_config_map("authorities", authority_name(cluster.name), BUNDLE_FILE), TOKEN_FOLDER))
    if console.session_secret_name is not None:
        found.append((_secret("session", console.session_secret_name, SESSION_KEY), SESSION_FOLDER))
    if (oidc := console.oidc) is not None:
        if oidc.client_secret_name is not None:
            found.append((_secret("oidc-client", oidc.client_secret_name, CLIENT_SECRET), CLIENT_FOLDER))
        if oidc.ca_config_map is not None:
            source = _config_map("oidc-issuer-ca", oidc.ca_config_map.name, oidc.ca_config_map.key)
            found.append((source, ISSUER_FOLDER))
    return found


def _config_map(volume: str, name: str, key: str) -> Manifest:
    return {"name": volume, "configMap": {"name": name, "items": [{"key": key, "path": BUNDLE_FILE}]}}


def _secret(volume: str, name: str, key: str) -> Manifest:
    return {"name": volume, "secret": {"secretName": name, "items": [{"key": key, "path": key}]}}
