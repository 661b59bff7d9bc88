"""Components of a broker that authenticate callers and decide on their access, and the first administrator's token."""

from __future__ import annotations

import math
import secrets  # noqa: TID251 - the only source of tokens
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fairlead_api.audit_events import AuditEvent
from fairlead_api.token_text import ALPHABET, ID_LENGTH, SECRET_LENGTH, TokenText, parse_token
from fairlead_broker.access.would_be_denied import DeniedOperation
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.security import SecurityAdmin
from fairlead_broker.credentials.claims import IssuerRules, issuer_in
from fairlead_broker.identity.issuer_keys import IssuerKeys
from fairlead_broker.identity.key_fetching import KeySource, fetch
from fairlead_broker.identity.refreshing import FILE, KeyRefresh
from fairlead_broker.identity.signed_tokens import SignedTokens
from fairlead_broker.issuer_settings import IssuerSettings
from fairlead_broker.runtime.audit_log import AuditLog, AuditQueue
from fairlead_broker.runtime.broker import Broker
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.quota_exchange import QuotaExchange
from fairlead_broker.runtime.quota_view import QuotaMetrics, QuotaView
from fairlead_broker.runtime.running_reads import RunningReads
from fairlead_broker.runtime.security_changes import SecurityChanges
from fairlead_broker.runtime.security_view import ACCEPTED, SecurityCounters, SecurityView
from fairlead_broker.wiring.engine import Engine
from fairlead_broker.wiring.replicas import ReplicaParts

ADMIN: Final = "user:admin"
"""Principal of the token in `admin_token_file`; a superuser if that setting is set (rule A23)."""
TOKEN_FILE_BYTES_MAX: Final = 4096
OWN_FOLDER: Final = ".fairlead"
"""Folder in the data directory for the broker's files other than logs."""
ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBERNETES_KEYS: Final = "https://kubernetes.default.svc/openid/v1/jwks"


class SecurityRefused(ValueError):
    """A security setting names a file that cannot be used, so the broker does not start."""


class IssuerUnknown(SecurityRefused):
    """The issuer of the service accounts is not configured, and the broker has no token of a service account."""


class AdminTokenUnreadable(SecurityRefused):
    """The file of the setting `admin_token_file` does not contain an API token."""


@dataclass(frozen=True, slots=True)
class SecurityParts:
    """Components that decide access."""

    view: SecurityView
    changes: SecurityChanges
    audit: AuditLog
    audit_queue: AuditQueue
    reads: RunningReads
    quotas: QuotaView
    quota_exchange: QuotaExchange


def build_security(engine: Engine, entry: Entry, parts: ReplicaParts) -> SecurityParts:
    """Build the components that decide access."""
    settings, metric = engine.settings, engine.telemetry.metric
    authentications = metric("fairlead_authentications_total")
    denied = metric("fairlead_access_denied_total")
    dropped = metric("fairlead_audit_topic_dropped_total")
    queue = AuditQueue(entry.mirror.metadata, dropped.inc)
    audit = AuditLog(engine.clock, entry.cluster.cluster_id, settings.id, queue)
    engine.supervisor.spawn(audit.run(), "audit log")
    signed = _signed_tokens(engine, audit)
    superusers = settings.superusers if settings.admin_token_file is None else (*settings.superusers, ADMIN)

    def authenticated(source: str, outcome: str, observed: bool) -> None:
        authentications.labels(source, outcome).inc()
        if outcome != ACCEPTED:
            audit.authentication_failed(source, outcome, observed=observed)

    def report_denied(operation: DeniedOperation, observed: bool) -> None:
        denied.labels(str(observed).lower()).inc()
        audit.denied(operation, observed=observed)

    view = SecurityView(
        entry.mirror.metadata,
        engine.clock,
        settings.security_floor,
        superusers,
        SecurityCounters(
            authentication=authenticated,
            denied=report_denied,
        ),
        signed,
    )
    metric("fairlead_security_stale_seconds").set_function(
        lambda: engine.clock.monotonic() - entry.incarnation.membership.confirmed_at
    )
    metric("fairlead_known_callers").set_function(lambda: view.known_callers)
    changes = SecurityChanges(
        SecurityAdmin(entry.coordination, entry.mirror),
        entry.mirror,
        parts.peers.peer_side.peers,
        engine.clock,
        new_token,
    )
    reads = RunningReads(view)
    engine.supervisor.spawn(reads.run(), "running-reads")
    quotas = QuotaView(entry.mirror.metadata, engine.clock.monotonic, _quota_metrics(engine))
    exchange = QuotaExchange(quotas, parts.peers.peer_side.peers, entry.mirror, engine.clock)
    engine.supervisor.spawn(exchange.run(), "quotas")
    return SecurityParts(view, changes, audit, queue, reads, quotas, exchange)


def _quota_metrics(engine: Engine) -> QuotaMetrics:
    refused = engine.telemetry.metric("fairlead_quota_refused_total")
    used = engine.telemetry.metric("fairlead_quota_used_ratio")

    def show(ratios: Mapping[tuple[str, str], float]) -> None:
        used.clear()
        for labels, ratio in ratios.items():
            used.labels(*labels).set(ratio)

    return QuotaMetrics(lambda subject, limit: refused.labels(subject, limit).inc(), show)


def _signed_tokens(engine: Engine, audit: AuditLog) -> SignedTokens:
    """Return the verifier of tokens from the configured issuers, and start fetching their keys in the background."""
    settings, clock = engine.settings, engine.clock
    if not settings.issuers:
        return SignedTokens({}, lambda *_: None, clock)
    sources = {name: _source(name, each, settings.cluster) for name, each in settings.issuers.items()}
    file = settings.data / OWN_FOLDER / FILE

    def changed(issuer: str, keys: list[str]) -> None:
        audit.happened(AuditEvent.ISSUER_KEYS_CHANGED, {"issuer": issuer, "keys": keys})

    refresh = KeyRefresh(sources, fetch, file, clock, engine.log, changed)
    refresh.load()
    engine.supervisor.spawn(refresh.run(), "issuers")
    age = engine.telemetry.metric("fairlead_issuer_keys_age_seconds")
    for name, (keys, _) in sources.items():
        age.labels(name).set_function(partial(_age, keys, clock))
    return SignedTokens({name: keys for name, (keys, _) in sources.items()}, refresh.wanted, clock)


def _age(keys: IssuerKeys, clock: Clock) -> float:
    """Return the seconds since an issuer's keys were fetched, or infinity before the first fetch."""
    return math.inf if keys.fetched_us is None else (clock.now_us() - keys.fetched_us) / 1e6


def _source(name: str, settings: IssuerSettings, cluster: str) -> tuple[IssuerKeys, KeySource]:
    """Return a new key set for an issuer, still without keys, and the source of its keys (rules A14, A18)."""
    issuer, own = settings.issuer, ACCOUNT_FOLDER / "token"
    if issuer is None:
        issuer = issuer_in(own.read_text(encoding="ascii", errors="replace")) if own.exists() else None
    if issuer is None:
        message = f"the issuer {name} has no `issuer`, and {own} has no token of a service account"
        raise IssuerUnknown(message)
    rules = IssuerRules(
        name=name,
        issuer=issuer,
        audience=settings.audience or f"fairlead/{cluster}",
        principal_claim=settings.principal_claim,
        groups_claim=settings.groups_claim,
        algorithms=frozenset(settings.algorithms),
        token_seconds_max=settings.token_seconds_max,
        kubernetes=settings.kubernetes,
    )
    if not settings.kubernetes:
        return IssuerKeys(rules), KeySource(issuer, settings.jwks, settings.ca, settings.bearer_file)
    source = KeySource(
        issuer,
        settings.jwks or KUBERNETES_KEYS,
        settings.ca or ACCOUNT_FOLDER / "ca.crt",
        settings.bearer_file or own,
    )
    return IssuerKeys(rules), source


def new_token() -> TokenText:
    """Return a new API token of random characters."""
    return TokenText(_characters(ID_LENGTH), _characters(SECRET_LENGTH))


def _characters(count: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(count))


async def keep_admin_token(broker: Broker) -> None:
    """Store the token of `admin_token_file`. If the file does not exist, create it with a new token.

    Raises `AdminTokenUnreadable`, and OSError if the file cannot be read or written.
    """
    path = broker.settings.admin_token_file
    if path is None:
        return
    if path.exists():
        token = parse_token(path.read_text(encoding="ascii", errors="replace")[:TOKEN_FILE_BYTES_MAX].strip())
        if token is None:
            message = f"{path} contains no API token; remove the file to get another token"
            raise AdminTokenUnreadable(message)
    else:
        token = new_token()
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(token.text + "\n", encoding="ascii")
        broker.log.info("token of user:admin written", path=str(path))
    await broker.security_changes.keep_token(token, ADMIN)
