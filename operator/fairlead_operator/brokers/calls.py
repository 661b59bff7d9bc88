"""Admin clients of all Clusters, the errors of their calls, and the survey of a Cluster's brokers.

`reconcile/` calls this module. A template defines the broker addresses, so that an operator outside the Kubernetes
network can use addresses other than the DNS names of the pods. `survey` reads all data that a plan needs from the
brokers of a Cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import Admin
from fairlead.errors import BugError, ClosedError, RefreshError, RetryError, UnreachableError
from fairlead_operator.brokers.identity import OperatorIdentity, SecureAccess
from fairlead_operator.clock import Clock, SystemClock
from fairlead_operator.naming import DATA_PORT, broker_pod_name
from fairlead_operator.plan.observed import BrokersAnswer

DEFAULT_BROKER_URL: Final = f"http://{{pod}}.{{cluster}}-brokers.{{namespace}}.svc:{DATA_PORT}"
"""Template of a broker's address, in which `{pod}`, `{pool}`, `{id}`, `{cluster}` and `{namespace}` are replaced."""

CALL_SECONDS: Final = 5.0
"""Deadline of a call including its retries: longer than a leader election, but short enough for a user who waits."""
RETRY: Final = "1s"
"""Retry timeout of a client. The timeout is short, since a failed reconcile is retried anyway."""
CONNECT: Final = "1s"
UNUSED_SECONDS_MAX: Final = 60.0
"""Idle time after which a client with outdated broker addresses is closed; longer than any call."""


class BrokersUnavailable(Exception):
    """No broker of the cluster answered in time, or no broker can serve the call now. The caller should retry later.

    The message names the call and the failure.
    """


@contextlib.contextmanager
def broker_errors() -> Iterator[None]:
    """Convert transient errors to `BrokersUnavailable`; permanent refusals pass unchanged."""
    try:
        yield
    except (UnreachableError, RetryError, RefreshError, BugError, ClosedError) as error:
        raise BrokersUnavailable(str(error)) from error


@contextlib.asynccontextmanager
async def broker_deadline(what: str, seconds: float = CALL_SECONDS) -> AsyncIterator[None]:
    """Set a deadline for the enclosed calls, and convert their errors as `broker_errors` does."""
    try:
        with broker_errors():
            async with asyncio.timeout(seconds):
                yield
    except TimeoutError as error:
        msg = f"{what}: no answer within {seconds:g} s"
        raise BrokersUnavailable(msg) from error


@dataclass(slots=True)
class _Open:
    """An open admin client and the time of its last use."""

    admin: Admin = field(repr=False)
    used: float


class BrokerCalls:
    """Admin clients of all clusters. A client is opened at its first use and stays open until `close`."""

    def __init__(
        self,
        url: str = DEFAULT_BROKER_URL,
        *,
        clock: Clock | None = None,
        identity: OperatorIdentity | None = None,
    ) -> None:
        """`identity`: TLS files and token for calls to the brokers of Clusters with security; None for plain calls."""
        self._url = url
        self._identity = identity
        self._clock = clock or SystemClock()
        self._open: dict[tuple[str, str], dict[tuple[str, ...], _Open]] = {}

    async def admin(self, cluster: dict[str, Any], *, request_timeout: str = CONNECT) -> Admin:
        """Return the open client for the current broker addresses of a Cluster, which is given as its manifest.

        `request_timeout`: time for the answer to one request, longer for calls in which brokers ask other clusters.
        """
        secure = None if self._identity is None else await self._identity.access(cluster)
        return await self.admin_of(
            cluster["metadata"]["namespace"],
            cluster["metadata"]["name"],
            brokers_of(cluster),
            secure,
            request_timeout=request_timeout,
        )

    async def admin_of(
        self,
        namespace: str,
        cluster: str,
        brokers: Iterable[tuple[str, int]],
        secure: SecureAccess | None = None,
        *,
        request_timeout: str = CONNECT,
    ) -> Admin:
        """Return the open client of a cluster with the given brokers, each a pair of pool name and broker id.

        Raises `BrokersUnavailable` if `brokers` is empty.
        """
        url = self._url if secure is None else secure.url
        addresses = tuple(_address(url, namespace, cluster, pool, broker) for pool, broker in brokers)
        if not addresses:
            msg = f"cluster {namespace}/{cluster} has no brokers"
            raise BrokersUnavailable(msg)
        clients, now = self._open.setdefault((namespace, cluster), {}), self._clock.monotonic()
        kind = (request_timeout, *addresses)
        known = clients.get(kind)
        if known is None:
            certificate, key = (None, None) if secure is None else secure.certificate_files or (None, None)
            admin = Admin(
                addresses,
                client_cert_file=certificate,
                client_key_file=key,
                request_timeout=request_timeout,
                connect_timeout=CONNECT,
                retry_timeout=RETRY,
                ca_file=None if secure is None else secure.ca_file,
                token_file=None if secure is None else secure.token_file,
                allow_insecure_token=secure is not None and secure.allow_insecure,
            )
            await admin.__aenter__()
            known = clients[kind] = _Open(admin, now)
        known.used = now
        # A client for other addresses may still be in use by a pass that has not observed the change to the Cluster
        # yet.
        old = [each for each, client in clients.items() if now - client.used > UNUSED_SECONDS_MAX]
        for unused in [clients.pop(each) for each in old]:
            await unused.admin.__aexit__(None, None, None)
        return known.admin

    async def forget(self, namespace: str, cluster: str) -> None:
        """Close the clients of a deleted Cluster."""
        for client in self._open.pop((namespace, cluster), {}).values():
            await client.admin.__aexit__(None, None, None)
        if self._identity is not None:
            self._identity.forget(namespace, cluster)

    async def close(self) -> None:
        """Close all clients."""
        for namespace, cluster in tuple(self._open):
            await self.forget(namespace, cluster)
        if self._identity is not None:
            self._identity.close()


def _address(url: str, namespace: str, cluster: str, pool: str, broker: int) -> str:
    pod = broker_pod_name(cluster, pool, broker)
    return url.format(pod=pod, pool=pool, id=broker, cluster=cluster, namespace=namespace)


def brokers_of(cluster: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the brokers in the spec or the status of a Cluster, as pairs of pool name and broker id, ordered by id."""
    found = set[tuple[str, int]]()
    for pool in cluster.get("spec", {}).get("brokers") or []:
        first = pool.get("firstBrokerId", 0)
        found.update((pool["name"], first + index) for index in range(pool.get("replicas", 0)))
    for pool in cluster.get("status", {}).get("pools") or []:
        found.update((pool["name"], broker) for broker in pool.get("brokerIds") or [])
    return sorted(found, key=lambda each: each[1])


SURVEY_SECONDS: Final = 10.0
"""Deadline for all calls of one survey together, including the metadata of thousands of topics."""


async def survey(admin: Admin, *, with_metadata: bool, with_certificates: bool = False) -> BrokersAnswer:
    """Read the brokers, configuration, release and, if `with_metadata` is set, topics. Raises `BrokersUnavailable`.

    Brokers are read before replicas, so that the survey contains every replica of a broker that it reports as cordoned.
    """
    async with broker_deadline("survey of the brokers", SURVEY_SECONDS):
        cluster = await admin.cluster()
        brokers = {each.id: each for each in await admin.brokers()}
        versions = await admin.versions()
        config = await admin.cluster_config()
        certificates = (await admin.security_status()).certificates if with_certificates else []
        metadata = await admin.metadata() if with_metadata else None
    return BrokersAnswer(
        cluster_id=cluster.cluster_id,
        controller=cluster.controller,
        release=versions.release,
        feature_level=versions.feature_level,
        brokers=brokers,
        config=config,
        certificates=tuple(certificates),
        metadata=metadata,
    )
