"""Entity tags of answers that show the mirrored metadata (RFC 9110, 8.8.3).

Callers: the endpoints of calls that a caller repeats to learn of changes. An answer depends only on the state that its
tag names, and must be computed without an await after the tag.
"""

from __future__ import annotations

import hashlib
from http import HTTPStatus

from fairlead_broker.runtime import Broker
from fairlead_broker.server.http.call import Call


def entity_tag(broker: Broker, *parts: str) -> str:
    """Return the tag of an answer at the mirrored revision. `parts`: everything else on which the answer depends."""
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if any(parts) else ""
    return f'"{broker.entry.cluster.cluster_id[:8]}-{broker.metadata.metadata_revision}-{digest}"'


def names_of_caller(call: Call) -> str:
    """Return the names of the caller if its access decides what an answer shows; otherwise nothing."""
    return ",".join(call.access.caller.names) if call.access.hides else ""


def tag_headers(call: Call, tag: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with a tag."""
    headers = [(b"etag", tag.encode()), (b"cache-control", b"no-cache")]
    if not call.access.is_open:
        headers.append((b"vary", b"authorization"))
    return headers


async def is_answered(call: Call, tag: str) -> bool:
    """Answer 304 if the caller's copy (If-None-Match) is current; return whether the call is answered."""
    if not matches(call.header_text(b"if-none-match"), tag):
        return False
    await call.answer(HTTPStatus.NOT_MODIFIED, tag_headers(call, tag))
    return True


def matches(if_none_match: str, tag: str) -> bool:
    """Return whether an If-None-Match header contains a tag (RFC 9110, 13.1.2; weak comparison)."""
    if if_none_match.strip() == "*":
        return True
    return tag in (candidate.strip().removeprefix("W/") for candidate in if_none_match.split(","))
