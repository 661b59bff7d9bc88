"""One step of a Cluster's certificates: reads the Secrets, makes a plan, and writes missing or expiring certificates.

The reconciler of Clusters calls this step before all other steps, so that certificates are renewed while other parts of
a Cluster are blocked (rule K4). A Secret that belongs to another program is never written (rule K6). Secrets are read
by name, and never listed or watched (rule K7).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.conditions import rfc3339
from fairlead_operator.certificates.authority import (
    Pair,
    bytes_of,
    new_authority,
    new_certificate,
    read_certificate,
    read_pair,
    text_of,
)
from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    AUTHORITIES_SINCE_ANNOTATION,
    BROKER_COMPONENT,
    CLUSTER,
    CONFIG_MAP,
    RENEW_CA_ANNOTATION,
    SECRET,
    Manifest,
    ObjectRef,
    authority_name,
    brokers_tls_name,
)
from fairlead_operator.plan.securing.certificates import (
    CLIENTS_FOLLOW,
    AuthorityPlan,
    AuthorityStep,
    Certificates,
    LeafWish,
    Renewal,
    Reports,
    SeenAuthority,
    etcd_fingerprint,
    leaf_is_due,
    leaves_of,
    plan_authority,
)
from fairlead_operator.plan.securing.steps import overlap_of
from fairlead_operator.ports import KubernetesApi
from fairlead_operator.render.metadata import belongs_to, framed
from fairlead_operator.render.security import TLS_VOLUME, data_tls_name
from fairlead_operator.telemetry import Log

CURRENT: Final = ("tls.crt", "tls.key")
FOLLOWING: Final = ("next.crt", "next.key")
PREVIOUS: Final = "previous.crt"
BUNDLE: Final = "ca.crt"


class CertificatesStep:
    """Steps to create and renew the certificates of all Clusters; no state is kept between two passes."""

    def __init__(self, api: KubernetesApi, clock: Clock, log: Log) -> None:
        self._api = api
        self._clock = clock
        self._log = log

    async def take(
        self, cluster: Cluster, reports: Reports, presented: frozenset[str] = frozenset()
    ) -> Certificates:
        """Create, replace and remove authorities and certificates according to the plan. Raises `ApiError`.

        `presented`: names of the Secrets with the certificates that brokers present to clients at present.
        """
        leaves = leaves_of(cluster)
        names = [authority_name(cluster.name), *(each.secret for each in leaves)]
        stored = await asyncio.gather(*(self._read(cluster, name) for name in names))
        for name, secret in zip(names, stored, strict=True):
            if secret is not None and not belongs_to(secret, cluster.name, cluster.metadata.uid):
                return Certificates(foreign=f"Secret {name}")
        kept, *contents = map(_content, stored)
        done = await self._bring(cluster, kept, list(zip(leaves, contents, strict=True)), reports)
        return await self._with_client_certificates(cluster, done, presented)

    async def _with_client_certificates(
        self, cluster: Cluster, done: Certificates, presented: frozenset[str]
    ) -> Certificates:
        """Add the authorities of certificates for clients that other programs create (rule K2).

        Until the last broker has restarted with another certificate, clients need the authorities of both.
        """
        wanted, own = data_tls_name(cluster), brokers_tls_name(cluster.name)
        names = sorted({wanted, *presented} - {own})
        secrets = await asyncio.gather(*(self._read(cluster, name) for name in names))
        found = {name: secret for name, secret in zip(names, secrets, strict=True) if secret is not None}
        others = (
            _content(secret).get(BUNDLE, b"").decode("ascii", "replace").strip() for secret in found.values()
        )
        together = done.authorities + "".join(f"{each}\n" for each in dict.fromkeys(others) if each)
        missing = "" if wanted == own or wanted in found else f"Secret {wanted}"
        known = replace(done, client_authorities=together, missing=missing)
        return known if wanted == own else await self._for_followers(cluster, known, presented)

    async def _for_followers(
        self, cluster: Cluster, known: Certificates, presented: frozenset[str]
    ) -> Certificates:
        """Hold another certificate until clients have had time to load its authority."""
        now = self._clock.now()
        live = await self._api.get(ObjectRef(CONFIG_MAP, cluster.namespace, authority_name(cluster.name)))
        since = now
        if live is not None and (live.get("data") or {}).get(BUNDLE) == known.client_authorities:
            stored = (live["metadata"].get("annotations") or {}).get(AUTHORITIES_SINCE_ANNOTATION, "")
            with contextlib.suppress(ValueError):
                since = datetime.fromisoformat(stored)
        due = since + min(overlap_of(cluster), CLIENTS_FOLLOW)
        is_held = bool(presented) and data_tls_name(cluster) not in presented and now < due
        held = f"clients load the authority of Secret {data_tls_name(cluster)} until {rfc3339(due)}"
        return replace(known, client_authorities_since=rfc3339(since), held=held if is_held else "")

    async def _bring(
        self,
        cluster: Cluster,
        kept: dict[str, bytes],
        leaves: list[tuple[LeafWish, dict[str, bytes]]],
        reports: Reports,
    ) -> Certificates:
        now = self._clock.now()
        authority = dict(kept)
        if read_pair(*_pair(authority, CURRENT)) is None:
            authority = _as_current(new_authority(f"{cluster.namespace}/{cluster.name}", now))
        brokers, content = leaves[0]
        leaf = read_pair(*_pair(content, CURRENT))
        renewal = Renewal(
            now=now,
            overlap=overlap_of(cluster),
            asked=RENEW_CA_ANNOTATION in cluster.metadata.annotations,
        )
        plan = plan_authority(_seen(authority), leaf, reports, renewal)
        authority = _after(plan, authority, cluster, self._clock)
        if authority != kept:
            self._log.info("authority changed", cluster=_subject(cluster), step=plan.step.name)
            await self._write(cluster, authority_name(cluster.name), authority)
        if renewal.asked and _seen(authority).following is not None:
            await self._api.patch(
                ObjectRef(CLUSTER, cluster.namespace, cluster.name),
                {"metadata": {"annotations": {RENEW_CA_ANNOTATION: None}}},
            )
        signed = [await self._bring_leaf(cluster, wish, held, authority) for wish, held in leaves]
        seen = _seen(authority)
        return Certificates(
            names=brokers.names,
            authorities=_bundle(authority).decode(),
            trusted=frozenset(each.sha256 for each in seen.trusted),
            leaf=read_certificate(signed[0][CURRENT[0]]),
            etcd_authorities=etcd_fingerprint(seen),
            etcd_client=_pair(signed[-1], CURRENT) if len(signed) > 1 else (b"", b""),
            waits=plan.waits,
        )

    async def _bring_leaf(
        self, cluster: Cluster, wish: LeafWish, stored: dict[str, bytes], authority: dict[str, bytes]
    ) -> dict[str, bytes]:
        """Write the Secret of a certificate if the certificate must be renewed or the authorities have changed."""
        now, current = self._clock.now(), _seen(authority).current
        wanted = {**{name: stored.get(name, b"") for name in CURRENT}, BUNDLE: _bundle(authority)}
        if leaf_is_due(read_pair(*_pair(stored, CURRENT)), current, wish.names, now):
            wanted |= _as_current(
                new_certificate(Pair(*_pair(authority, CURRENT)), cluster.name, wish.names, now)
            )
        if wanted != stored:
            self._log.info("certificate changed", cluster=_subject(cluster), secret=wish.secret)
            await self._write(cluster, wish.secret, wanted)
        return wanted

    async def _read(self, cluster: Cluster, name: str) -> Manifest | None:
        return await self._api.get(ObjectRef(SECRET, cluster.namespace, name))

    async def _write(self, cluster: Cluster, name: str, content: dict[str, bytes]) -> None:
        manifest = framed(cluster, SECRET, name, component=BROKER_COMPONENT)
        data = {field: text_of(value) for field, value in sorted(content.items())}
        await self._api.apply({**manifest, "type": "Opaque", "data": data})


def presented_certificates(brokers: Iterable[Manifest]) -> frozenset[str]:
    """Return the names of the Secrets with the certificates that these pods of brokers present to clients."""
    volumes = (volume for pod in brokers for volume in pod["spec"].get("volumes") or ())
    return frozenset(each["secret"]["secretName"] for each in volumes if each["name"] == TLS_VOLUME)


def _after(
    plan: AuthorityPlan, authority: dict[str, bytes], cluster: Cluster, clock: Clock
) -> dict[str, bytes]:
    """Return the content of the authority's Secret after a step."""
    match plan.step:
        case AuthorityStep.KEEP:
            return authority
        case AuthorityStep.ADD_FOLLOWING:
            pair = new_authority(f"{cluster.namespace}/{cluster.name}", clock.now())
            return {**authority, FOLLOWING[0]: pair.certificate, FOLLOWING[1]: pair.key}
        case AuthorityStep.PROMOTE:
            certificate, key = _pair(authority, FOLLOWING)
            return {CURRENT[0]: certificate, CURRENT[1]: key, PREVIOUS: authority[CURRENT[0]]}
        case AuthorityStep.DROP_PREVIOUS:
            return {name: value for name, value in authority.items() if name != PREVIOUS}


def _seen(authority: dict[str, bytes]) -> SeenAuthority:
    current = read_certificate(authority[CURRENT[0]])
    assert current is not None, "an authority that cannot be read is replaced"
    return SeenAuthority(
        current=current,
        following=read_pair(*_pair(authority, FOLLOWING)),
        previous=read_certificate(authority.get(PREVIOUS, b"")),
    )


def _bundle(authority: dict[str, bytes]) -> bytes:
    return b"".join(authority[name] for name in (CURRENT[0], FOLLOWING[0], PREVIOUS) if name in authority)


def _pair(content: dict[str, bytes], names: tuple[str, str]) -> tuple[bytes, bytes]:
    return content.get(names[0], b""), content.get(names[1], b"")


def _as_current(pair: Pair) -> dict[str, bytes]:
    return {CURRENT[0]: pair.certificate, CURRENT[1]: pair.key}


def _content(secret: Manifest | None) -> dict[str, bytes]:
    return (
        {} if secret is None else {name: bytes_of(each) for name, each in (secret.get("data") or {}).items()}
    )


def _subject(cluster: Cluster) -> str:
    return f"{cluster.namespace}/{cluster.name}"
