"""Callers of Kafka's clients: the token or certificate of a connection, and the access of each request.

`dispatch` asks for the access of each request, so that a revoked or expired token ends a connection just as it ends
requests over HTTP. `sasl` stores the token of a connection.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead_api.principals import CERTIFICATE, is_principal_pattern
from fairlead_broker.access.caller import Caller, CallerSource
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.identity.signed_tokens import CallerPending
from fairlead_broker.kafka.calls.call import Client
from fairlead_broker.runtime.security_view import SecurityView


class Callers:
    """Access of the clients of all connections."""

    def __init__(self, security: SecurityView) -> None:
        self._security = security

    def client(self, address: str, port: int, names: Sequence[tuple[str, str]]) -> Client:
        """Return the client of a new connection; `names`: kind and value of each name in its verified certificate."""
        client = Client(address, port, certificate=certificate_caller(names))
        client.is_known = not self.without_token(client).is_stranger
        return client

    def without_token(self, client: Client) -> CallerAccess:
        """Return the access of a client without a token, by its certificate if it has one."""
        if client.certificate is not None:
            return self._security.of(client.certificate)
        return self._security.by_header([], client.address)

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


def certificate_caller(names: Sequence[tuple[str, str]]) -> Caller | None:
    """Return the caller `cert:NAME` with the first name that a principal may have, or None without such a name.

    The subject of the certificate is not read.
    """
    for _, value in names:
        principal = f"{CERTIFICATE}{value}"
        if "*" not in value and is_principal_pattern(principal):
            return Caller(principal=principal, source=CallerSource.CERTIFICATE)
    return None
