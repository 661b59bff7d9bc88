"""The components of a broker that name callers and decide their access, and the token of the first administrator."""

from __future__ import annotations

import secrets  # noqa: TID251 - the only source of tokens
from dataclasses import dataclass
from typing import Final

from fairlead_api.token_text import ALPHABET, ID_LENGTH, SECRET_LENGTH, TokenText, parse_token
from fairlead_broker.controlling.security import SecurityAdmin
from fairlead_broker.runtime.broker import Broker
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.security_changes import SecurityChanges
from fairlead_broker.runtime.security_view import SecurityCounters, SecurityView
from fairlead_broker.wiring.engine import Engine
from fairlead_broker.wiring.replicas import ReplicaParts

ADMIN: Final = "user:admin"
"""Principal of the token in `admin_token_file`, which is a superuser where that setting is set (rule A23)."""
TOKEN_FILE_BYTES_MAX: Final = 4096


class AdminTokenUnreadable(ValueError):
    """The file of the setting `admin_token_file` does not contain an API token."""


@dataclass(frozen=True, slots=True)
class SecurityParts:
    """Components that decide access."""

    view: SecurityView
    changes: SecurityChanges


def build_security(engine: Engine, entry: Entry, parts: ReplicaParts) -> SecurityParts:
    """Build the components that decide access."""
    settings, metric = engine.settings, engine.telemetry.metric
    authentications = metric("fairlead_authentications_total")
    denied = metric("fairlead_access_denied_total")
    superusers = settings.superusers if settings.admin_token_file is None else (*settings.superusers, ADMIN)
    view = SecurityView(
        entry.mirror.metadata,
        engine.clock,
        settings.security_floor,
        superusers,
        SecurityCounters(
            authentication=lambda source, outcome: authentications.labels(source, outcome).inc(),
            denied=lambda observed: denied.labels(str(observed).lower()).inc(),
        ),
    )
    metric("fairlead_security_stale_seconds").set_function(
        lambda: engine.clock.monotonic() - entry.incarnation.membership.confirmed_at
    )
    changes = SecurityChanges(
        SecurityAdmin(entry.coordination, entry.mirror),
        entry.mirror,
        parts.peers.peer_side.peers,
        engine.clock,
        new_token,
    )
    return SecurityParts(view, changes)


def new_token() -> TokenText:
    """Return a token of random characters."""
    return TokenText(_characters(ID_LENGTH), _characters(SECRET_LENGTH))


def _characters(count: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(count))


async def keep_admin_token(broker: Broker) -> None:
    """Store the token of `admin_token_file`; create the file with a new token if it does not exist.

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
