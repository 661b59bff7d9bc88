"""Settings of the operator: one frozen object, built once at the start from `FAIRLEAD_OPERATOR_...` variables.

`commands` builds it, flags before variables before the defaults here. Settings are values: nothing is opened or
connected in this module.
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
    """Which namespaces are watched; `namespaces` is empty for all of them."""

    namespaces: tuple[str, ...]

    @property
    def everything(self) -> bool:
        """Whether all namespaces are watched, also those to come."""
        return not self.namespaces


@dataclass(frozen=True, slots=True)
class Listen:
    """Host and port of a listener; port 0 asks the system for a free one."""

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
    """Namespaces to watch, with commas between; `*` for all of them, nothing for the operator's own."""
    image: str = DEFAULT_BROKER_IMAGE
    """Image of brokers where a Cluster names none."""
    etcd_image: str = DEFAULT_ETCD_IMAGE
    """Image of etcd where a Cluster names none."""
    broker_url: str = "http://{pod}.{cluster}-brokers.{namespace}.svc:9520"
    """Address of a broker for the operator; fills in {pod}, {cluster}, {namespace}, {pool} and {id}."""
    etcd_url: str = "http://{pod}.{cluster}-etcd-peers.{namespace}.svc:2379"
    """Address of a member of a managed etcd for the operator; fills in {pod}, {cluster}, {namespace} and {id}."""
    resync_seconds: float = Field(default=120.0, ge=5.0)
    """Every resource is looked at again after this time, also when nothing told of a change."""
    metrics_listen: Annotated[Listen, NoDecode, BeforeValidator(_listen)] = Listen("::", 8080)
    """Listener of /metrics, /healthz and /readyz: every address, as pods are scraped and probed. `[::]` means all IPv6
    and IPv4 addresses."""
    lease_name: str = FIELD_MANAGER
    """Lease by which replicas of the operator elect their leader; operators that share no work need different names."""
    pod_name: str = ""
    """Name of the operator's pod, which shows in the Lease and in Events."""
    pod_namespace: str = ""
    """Namespace of the operator's pod, of the Lease, and of the default watch."""
    log_format: Literal["json", "console", "auto"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    kubeconfig: Path | None = None
    """How to reach the API server from outside of a pod."""
    context: str | None = None
    """Context of the kubeconfig; without, its current one."""

    def scope(self, own_namespace: str) -> Scope:
        """Which namespaces are watched by an operator that runs in that one."""
        if ALL_NAMESPACES in self.namespaces:
            return Scope(())
        return Scope(self.namespaces or (own_namespace,))
