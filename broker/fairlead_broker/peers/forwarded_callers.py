"""Headers of a forwarded call that name the client's principal, address and token.

The packages that answer clients write the headers; the peer listener reads them.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from fairlead_api.audit_events import cut
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.peers.identity import CALLER_ADDRESS, CALLER_ISSUED, CALLER_ISSUER, CALLER_TOKEN

FORWARDED_CALLER: Final = "fairlead-caller"
"""Header of a forwarded call with the caller's principal and groups, separated by commas. Only the peer listener reads
the header, which replaces `Authorization`: no token leaves the broker that the client called."""


def caller_header(access: CallerAccess) -> tuple[str, str]:
    """Return the header that names the caller of a forwarded call."""
    return FORWARDED_CALLER, ",".join(access.caller.names)


def audited_caller_headers(access: CallerAccess, address: str) -> list[tuple[str, str]]:
    """Return the headers that name the caller of a forwarded call, and describe its address and token."""
    caller = access.caller
    token = [] if caller.token_id is None else [(CALLER_TOKEN, caller.token_id)]
    if caller.issuer is not None:
        key = "" if caller.key_id is None else f"/{quote(cut(caller.key_id), safe='')}"
        token.append((CALLER_ISSUER, f"{caller.issuer}{key}"))
    if caller.issued_us is not None:
        token.append((CALLER_ISSUED, str(caller.issued_us)))
    return [caller_header(access), (CALLER_ADDRESS, address), *token]
