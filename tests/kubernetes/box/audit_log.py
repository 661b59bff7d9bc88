"""The API server's audit log: requests with their users and answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One answered request."""

    time: datetime
    user: str
    user_agent: str
    verb: str
    uri: str
    resource: str
    """Plural and subresource, such as `pods` or `pods/status`; empty for a request without an object."""
    namespace: str
    name: str
    code: int
    """Status of the answer; 403 is Forbidden."""
    has_right: bool
    """Whether the user is authorized to make the request, even if an admission rule then refuses it."""
    body: dict[str, Any] | None
    """Body of a write request."""

    @property
    def is_write(self) -> bool:
        """Whether the request changes an object and is not a dry run."""
        return self.verb in WRITES and "dryRun=" not in self.uri


class AuditLog:
    """The log of one API server, across all its restarts."""

    def __init__(self, path: Path) -> None:
        """Read the log from this file."""
        self._path = path

    def mark(self) -> int:
        """Return the current end of the log as a start for `events(since=...)`."""
        return self._path.stat().st_size

    def events(
        self,
        *,
        since: int = 0,
        user: str | None = None,
        namespace: str | None = None,
        writes: bool = False,
    ) -> list[AuditEvent]:
        """Return events after a mark, oldest first, optionally of one user or namespace, or only writes.

        The user of a service account is `system:serviceaccount:<namespace>:<name>`. Heartbeats of nodes and of the
        control plane are not logged.
        """
        with self._path.open("rb") as file:
            file.seek(since)
            # The last line may be incomplete. Most lines are about other users, and parsing all lines would take a long
            # time.
            lines = [line for line in file if line.endswith(b"\n") and (user or "").encode() in line]
        found = [_event(json.loads(line)) for line in lines]
        return [
            event
            for event in found
            if (user is None or event.user == user)
            and (namespace is None or event.namespace == namespace)
            and (not writes or event.is_write)
        ]


def _event(line: dict[str, Any]) -> AuditEvent:
    reference = line.get("objectRef", {})
    parts = (reference.get("resource", ""), reference.get("subresource", ""))
    return AuditEvent(
        time=datetime.fromisoformat(line["requestReceivedTimestamp"]),
        user=line["user"].get("username", ""),
        user_agent=line.get("userAgent", ""),
        verb=line["verb"],
        uri=line["requestURI"],
        resource="/".join(part for part in parts if part),
        namespace=reference.get("namespace", ""),
        name=reference.get("name", ""),
        code=line.get("responseStatus", {}).get("code", 0),
        has_right=line.get("annotations", {}).get("authorization.k8s.io/decision") != "forbid",
        body=line.get("requestObject"),
    )
