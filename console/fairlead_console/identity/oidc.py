"""Sign-in through an OIDC issuer: the authorization code flow with PKCE.

The console does not verify the issuer's tokens: the cluster verifies the token of every call.
"""

from __future__ import annotations

import asyncio
import secrets  # noqa: TID251 - states and verifiers are drawn here
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote_plus, urlsplit

import msgspec
import pyreqwest.client
import pyreqwest.exceptions
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from fairlead import clock
from fairlead.connection.http_threads import rest_before_exit
from fairlead.connection.transport import cancellable
from fairlead_console.identity.sessions import FLOW_SECONDS, Flow

DISCOVERY: Final = "/.well-known/openid-configuration"
DISCOVERY_SECONDS: Final = 600.0
"""Age at which the issuer's addresses are read again."""
SECONDS_MAX: Final = 10
BYTES_MAX: Final = 256 * 1024
_VERIFIER_BYTES: Final = 48


class OidcError(Exception):
    """The issuer cannot be used or has refused the sign-in; the message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcClient:
    """The console as a client of an issuer."""

    issuer: str
    """Address of the issuer, the value of the claim `iss`."""
    client_id: str
    client_secret: str | None = None
    scope: str = "openid"
    forward: Literal["id", "access"] = "id"
    """Token of the issuer's answer that is forwarded to the cluster."""
    ca_file: Path | None = None
    """PEM file with the authority that signed the issuer's certificate."""


class _Discovered(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str


class _TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str | None = None
    access_token: str | None = None


class OidcIssuer:
    """Requests to the issuer."""

    def __init__(self, client: OidcClient) -> None:
        self._client = client
        self._found: _Discovered | None = None
        self._found_at = float("-inf")

    @property
    def host(self) -> str:
        """Host name of the issuer, for display."""
        return urlsplit(self._client.issuer).netloc

    async def begin(self, redirect_uri: str, next_path: str) -> tuple[str, Flow]:
        """Return the issuer's address for the browser, and the state of the sign-in, which the browser must store."""
        found = await self._discover()
        flow = Flow(
            state=secrets.token_urlsafe(_VERIFIER_BYTES),
            verifier=secrets.token_urlsafe(_VERIFIER_BYTES),
            next=next_path,
            expires_at=clock.now_ns() / 1e9 + FLOW_SECONDS,
        )
        uri: str = prepare_grant_uri(
            found.authorization_endpoint,
            self._client.client_id,
            "code",
            redirect_uri=redirect_uri,
            scope=self._client.scope,
            state=flow.state,
            code_challenge=create_s256_code_challenge(flow.verifier),
            code_challenge_method="S256",
        )
        return uri, flow

    async def token_of(self, code: str, verifier: str, redirect_uri: str) -> str:
        """Exchange the code in the browser's request for a token. Raises `OidcError`."""
        found, client = await self._discover(), self._client
        fields = {"redirect_uri": redirect_uri, "code_verifier": verifier}
        if client.client_secret is None:
            fields["client_id"] = client.client_id
        body: str = prepare_token_request("authorization_code", code=code, **fields)
        answer = await self._send("POST", found.token_endpoint, body)
        try:
            tokens = msgspec.json.decode(answer, type=_TokenAnswer)
        except (msgspec.DecodeError, RecursionError) as error:
            msg = "the answer of the issuer cannot be read"
            raise OidcError(msg) from error
        token = tokens.id_token if client.forward == "id" else tokens.access_token
        if not token:
            msg = f"the issuer has sent no {client.forward} token; the scope is {client.scope!r}"
            raise OidcError(msg)
        return token

    async def _discover(self) -> _Discovered:
        now = clock.monotonic()
        if self._found is None or now - self._found_at > DISCOVERY_SECONDS:
            document = await self._send("GET", self._client.issuer.rstrip("/") + DISCOVERY)
            try:
                found = msgspec.json.decode(document, type=_Discovered)
            except (msgspec.DecodeError, RecursionError) as error:
                msg = "the discovery document of the issuer cannot be read"
                raise OidcError(msg) from error
            if found.issuer != self._client.issuer:
                msg = f"the discovery document is for the issuer {found.issuer}"
                raise OidcError(msg)
            self._found, self._found_at = found, now
        return self._found

    async def _send(self, method: str, url: str, form: str | None = None) -> bytes:
        client = self._client
        ca = None if client.ca_file is None else await asyncio.to_thread(client.ca_file.read_bytes)
        rest_before_exit()
        builder = (
            pyreqwest.client.ClientBuilder()
            .timeout(timedelta(seconds=SECONDS_MAX))
            .follow_redirects(False)
            .user_agent("fairlead-console")
        )
        if ca is not None:
            builder = builder.add_root_certificate_pem(ca)
        try:
            with cancellable():
                async with builder.build() as http:
                    request = http.request(method, url).header("accept", "application/json")
                    if form is not None:
                        request = request.header("content-type", "application/x-www-form-urlencoded")
                        request = request.body_text(form)
                        if client.client_secret is not None:
                            user, password = quote_plus(client.client_id), quote_plus(client.client_secret)
                            request = request.basic_auth(user, password)
                    async with request.build_streamed() as response:
                        return await _body(url, response)
        except pyreqwest.exceptions.DetailedPyreqwestError as error:
            causes = (error.details or {}).get("causes") or []
            raise OidcError(causes[-1]["message"] if causes else error.message) from error
        except (pyreqwest.exceptions.PyreqwestError, ValueError) as error:
            raise OidcError(str(error)) from error


async def _body(url: str, response: pyreqwest.response.Response) -> bytes:
    parts, size = list[bytes](), 0
    while (part := await response.body_reader.read(1 << 16)) is not None:
        size += len(part)
        if size > BYTES_MAX:
            msg = f"{url} answers more than {BYTES_MAX} bytes"
            raise OidcError(msg)
        parts.append(bytes(part))
    body = b"".join(parts)
    if response.status != HTTPStatus.OK:
        msg = f"{url} answers status {response.status}: {body[:200].decode(errors='replace')}"
        raise OidcError(msg)
    return body
