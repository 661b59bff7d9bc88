"""Callers of Kafka's clients: the token of a connection, and the access of each request.

`dispatch` asks for the access of each request, so that a revoked or expired token ends a connection just as it ends
requests over HTTP. `sasl` stores the token of a connection.
"""

from __future__ import annotations

from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.identity.signed_tokens import CallerPending
from fairlead_broker.kafka.calls.call import Client
from fairlead_broker.runtime.security_view import SecurityView


class Callers:
    """Access of the clients of all connections."""

    def __init__(self, security: SecurityView) -> None:
        self._security = security

    def client(self, address: str, port: int) -> Client:
        """Return the client of a new connection."""
        return Client(address, port, is_known=not self.anonymous(address).is_stranger)

    def anonymous(self, address: str) -> CallerAccess:
        """Return the access of a client without a token."""
        return self._security.by_header([], address)

    async def of_token(self, token: bytes, address: str) -> CallerAccess:
        """Return the access of a token.

        Raises `unauthenticated` for a token that is not accepted, and `throttled` for an address with too many refused
        tokens.
        """
        values = [b"Bearer " + token]
        try:
            return self._security.by_header(values, address)
        except CallerPending as pending:
            await pending.wait()
        return self._security.by_header(values, address, waited=True)
