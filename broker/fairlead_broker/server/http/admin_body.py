"""The body of an admin call: small, and JSON."""

from __future__ import annotations

from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.negotiation import body_type

# The longest honest one sets every configuration key of a topic: some KiB.
ADMIN_BYTES_MAX = 1 << 20


async def json_body(call: Call) -> bytes:
    """The body. Raises unsupported_media_type for anything that does not claim to be JSON, body_too_large."""
    body_type(call)
    return await call.body(ADMIN_BYTES_MAX)
