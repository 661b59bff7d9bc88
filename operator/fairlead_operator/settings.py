"""Settings of the operator: one frozen object, built once at startup from `FAIRLEAD_OPERATOR_...` variables.

`commands` builds the object. Flags override environment variables, and environment variables override the defaults in
this module. This module does no I/O except reading the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fairlead_operator.naming import DEFAULT_BROKER_IMAGE, DEFAULT_ETCD_IMAGE, FIELD_MANAGER

ALL_NAMESPACES: Final = "*"


@dataclass(frozen=True, slots=True)
class Scope:
    """The watched namespaces; `namespaces` is empty for all namespaces."""

    namespaces: tuple[str, ...]

    @property
    def everything(self) -> bool:
        """Whether all namespaces are watched, including future ones."""
        return not self.namespaces


@dataclass(frozen=True, slots=True)
class Listen:
    """Host and port of a listener; with port 0, the operating system chooses a free port."""

    host: str
    port: int


def _parts(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _listen(value: object) -> object:
    if not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        msg = f"{value!r} is not HOST:PORT (port 0 to 65535)"
        raise ValueError(msg)
    return Listen(host.removeprefix("[").removesuffix("]"), int(port))


class OperatorSettings(BaseSettings):
    """All settings of one operator."""

    model_config = SettingsConfigDict(env_prefix="FAIRLEAD_OPERATOR_", frozen=True, extra="ignore")

    namespaces: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parts)] = ()
    """Namespaces to watch, separated by commas; `*` for all namespaces, empty for the operator's own."""
    image: str = DEFAULT_BROKER_IMAGE
    """Image of brokers if a Cluster names none."""
    etcd_image: str = DEFAULT_ETCD_IMAGE
    """Image of etcd if a Cluster names none."""
    broker_url: str = "http://{pod}.{cluster}-brokers.{namespace}.svc:9520"
    """Template of the address for calls to a broker, with {pod}, {cluster}, {namespace}, {pool} and {id}."""
    broker_tls_url: str = "https://{pod}.{cluster}-brokers.{namespace}.svc:9524"
    """Template of the address for calls to a broker of a Cluster with TLS."""
    service_account: str = ""
    """Service account of the operator's pod, used for calls to brokers of Clusters with security; empty for none."""
    etcd_url: str = "http://{pod}.{cluster}-etcd-peers.{namespace}.svc:2379"
    """Template of the address for calls to a managed etcd member, with {pod}, {cluster}, {namespace} and {id}."""
    etcd_tls_url: str = "https://{pod}.{cluster}-etcd-peers.{namespace}.svc:2479"
    """Template of the address for calls to a managed etcd member with TLS."""
    resync_seconds: float = Field(default=120.0, ge=5.0)
    """Interval at which every resource is reconciled even without a change, in seconds."""
    metrics_listen: Annotated[Listen, NoDecode, BeforeValidator(_listen)] = Listen("::", 8080)
    """Listener of /metrics, /healthz and /readyz. `[::]` means all IPv6 and IPv4 addresses."""
    lease_name: str = FIELD_MANAGER
    """Lease for the leader election among replicas of the operator; independent operators need different names."""
    role_binding: str = ""
    """RoleBinding of the operator in each listed namespace; a namespace being deleted keeps it until its Topics are \
released. Empty for none."""
    pod_name: str = ""
    """Name of the operator's pod, written into the Lease and Events."""
    pod_namespace: str = ""
    """Namespace of the operator's pod and of the Lease; also the namespace that is watched by default."""
    log_format: Literal["json", "console", "auto"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    kubeconfig: Path | None = None
    """Kubeconfig file for access to the API server from outside a pod."""
    context: str | None = None
    """Context to use from the kubeconfig; None for the current context of the kubeconfig."""

    def scope(self, own_namespace: str) -> Scope:
        """Return the namespaces that an operator in `own_namespace` watches."""
        if ALL_NAMESPACES in self.namespaces:
            return Scope(())
        return Scope(self.namespaces or (own_namespace,))
