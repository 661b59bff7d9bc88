"""Address of the API server and credentials of the operator, read from a kubeconfig or the pod's service account.

`kubernetes.aio` reads the address and the credentials, runs credential plugins and renews tokens; this module converts
the result for aiohttp. When the API server no longer accepts the token, the caller loads the address and the
credentials again.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoConnection(Exception):
    """Neither a kubeconfig nor a service account provides the address of the API server."""


@dataclass
class Connection:
    """Address and credentials for the API server; `load` must be called first."""

    kubeconfig: Path | None
    """Kubeconfig file to read. None means the service account of the pod or, outside a pod, `KUBECONFIG` or
    `~/.kube/config`."""
    context: str | None = None
    configuration: Configuration = field(init=False)
    tls: ssl.SSLContext = field(init=False)

    async def load(self) -> None:
        """Read the address and the credentials; may be called repeatedly.

        Raises `NoConnection`, whose message names the sources that were tried.
        """
        configuration = Configuration()
        if self.kubeconfig is None and self._in_cluster():
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await self._load_file(configuration)
        self.configuration = configuration
        # The constructor of `RESTClientObject` creates the TLS context from files and inline certificates and opens no
        # connection.
        self.tls = RESTClientObject(configuration).ssl_context

    @property
    def server(self) -> str:
        """The server's URL without a trailing slash."""
        return str(self.configuration.host).rstrip("/")

    async def authorization(self) -> dict[str, str]:
        """Return the Authorization header; empty if the operator authenticates with a client certificate."""
        token = await self.configuration.get_api_key_with_prefix("BearerToken")
        if token:
            scheme, _, value = token.rpartition(" ")
            return {"Authorization": f"Bearer {value}" if scheme.lower() in {"", "bearer"} else token}
        if self.configuration.username:
            return {"Authorization": self.configuration.get_basic_auth_token() or ""}
        return {}

    @staticmethod
    def _in_cluster() -> bool:
        return "KUBERNETES_SERVICE_HOST" in os.environ and (ACCOUNT_FOLDER / "token").exists()

    async def _load_file(self, configuration: Configuration) -> None:
        path = str(self.kubeconfig) if self.kubeconfig is not None else None
        try:
            await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=path,
                context=self.context,
                client_configuration=configuration,
                persist_config=False,
            )
        except (ConfigException, OSError) as error:
            tried = path or "the pod's service account, KUBECONFIG and ~/.kube/config"
            message = f"the address of the API server cannot be read from {tried}: {error}"
            raise NoConnection(message) from error


def own_namespace() -> str | None:
    """Return the namespace of the pod in which this process runs; None outside a pod."""
    try:
        return (ACCOUNT_FOLDER / "namespace").read_text().strip() or None
    except OSError:
        return None
