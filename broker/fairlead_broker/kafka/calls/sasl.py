"""SaslHandshake and SaslAuthenticate: a connection presents a token, with PLAIN or OAUTHBEARER.

The token is an API token or a signed token, as in the header `Authorization` of HTTP clients. A connection may present
another token of the same principal before the current token expires (KIP-368).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.callers import Callers
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from fairlead_broker.kafka.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from fairlead_broker.runtime import Broker

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (OAUTHBEARER, PLAIN)
TOKEN_USER: Final = b"token"
"""User name of PLAIN, whose password is the token."""
FRAMED_SINCE: Final = 1
"""First version of SaslHandshake after which tokens are sent in SaslAuthenticate requests."""
LIFETIME_SINCE: Final = 1
"""First version of SaslAuthenticate that states when the token expires."""
FAILURE_SECONDS: Final = 1.0
"""Number of seconds by which the answer to a refused token is delayed, so that a client does not retry at once."""
_SEPARATOR: Final = b"\x01"


class MalformedToken(ValueError):
    """Raised for an authentication message that a mechanism does not allow; the message states what is allowed."""


class SaslCalls:
    """Calls with which a connection authenticates."""

    def __init__(self, broker: Broker, callers: Callers) -> None:
        self._broker = broker
        self._callers = callers

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.SASL_HANDSHAKE: self.handshake, ApiKey.SASL_AUTHENTICATE: self.authenticate}

    async def handshake(self, call: KafkaCall) -> Reply:
        """Choose a mechanism."""
        mechanism, error = call.request.mechanism, KafkaError.NONE
        if mechanism not in MECHANISMS:
            error = KafkaError.UNSUPPORTED_SASL_MECHANISM
        elif call.version < FRAMED_SINCE:
            # Clients of this version send tokens without a request frame.
            error = KafkaError.UNSUPPORTED_VERSION
        else:
            call.client.mechanism = mechanism
        return Reply(
            SaslHandshakeResponse(version=call.version, error_code=error, mechanisms=list(MECHANISMS)),
            closes=error is not KafkaError.NONE,
        )

    async def authenticate(self, call: KafkaCall) -> Reply:
        """Verify the token of the connection; a connection whose token is refused is closed."""
        client, mechanism = call.client, call.client.mechanism
        client.mechanism = None
        if mechanism is None:
            return _refused(call, KafkaError.ILLEGAL_SASL_STATE, "SaslHandshake must come first")
        try:
            token = _TOKENS[mechanism](bytes(call.request.auth_bytes))
            access = await self._callers.of_token(token, client.address)
        except (MalformedToken, ProblemError) as refused:
            # No event announces that a client may try again.
            await asyncio.sleep(FAILURE_SECONDS)  # noqa: TID251
            detail = refused.detail if isinstance(refused, ProblemError) else str(refused)
            return _refused(call, KafkaError.SASL_AUTHENTICATION_FAILED, detail)
        principal = access.caller.principal
        if client.principal not in (None, principal):
            return _refused(
                call,
                KafkaError.SASL_AUTHENTICATION_FAILED,
                f"the connection is that of {client.principal} and cannot become that of {principal}",
            )
        client.token, client.principal, client.is_known = token, principal, True
        response = SaslAuthenticateResponse(
            version=call.version, error_code=KafkaError.NONE, error_message=None, auth_bytes=b""
        )
        expires_us = access.caller.expires_us
        if expires_us is not None and call.version >= LIFETIME_SINCE:
            response.session_lifetime_ms = max(1, (expires_us - self._broker.clock.now_us()) // 1000)
        return Reply(response)


def plain_token(message: bytes) -> bytes:
    """Return the token in a message of PLAIN (RFC 4616). Raises MalformedToken."""
    parts = message.split(b"\0")
    if len(parts) != 3 or parts[0] not in (b"", TOKEN_USER) or parts[1] != TOKEN_USER or not parts[2]:
        msg = "PLAIN needs the user name 'token' and the token as the password"
        raise MalformedToken(msg)
    return parts[2]


def bearer_token(message: bytes) -> bytes:
    """Return the token in a message of OAUTHBEARER (RFC 7628). Raises MalformedToken."""
    head, _, rest = message.partition(_SEPARATOR)
    for pair in rest.split(_SEPARATOR) if head.startswith((b"n,", b"y,")) else ():
        name, _, value = pair.partition(b"=")
        scheme, _, token = value.partition(b" ")
        if name == b"auth" and scheme.lower() == b"bearer" and token:
            return token
    msg = "OAUTHBEARER needs a message with auth=Bearer and the token"
    raise MalformedToken(msg)


_TOKENS: Final[Mapping[str, Callable[[bytes], bytes]]] = {PLAIN: plain_token, OAUTHBEARER: bearer_token}
"""Function of each mechanism that extracts the token from a message."""


def _refused(call: KafkaCall, error: KafkaError, detail: str) -> Reply:
    return Reply(
        SaslAuthenticateResponse(
            version=call.version, error_code=error, error_message=detail, auth_bytes=b""
        ),
        closes=True,
    )
