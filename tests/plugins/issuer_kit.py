"""An issuer of signed tokens for tests: keys that can be rotated, tokens, forged tokens, and a server for its keys."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey

from certificate_kit import Authority

AUDIENCE = "fairlead/fairlead"


def encoded(value: object) -> str:
    """Return a part of a token."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def key_of(kind: str, key_id: str) -> Any:
    """Return a pair of keys: `RSA` with 2,048 bits, or the name of a curve."""
    parameters: Any = {"kid": key_id}
    if kind == "RSA":
        return RSAKey.generate_key(2048, parameters)
    if kind == "Ed25519":
        return OKPKey.generate_key("Ed25519", parameters)
    return ECKey.generate_key(kind, parameters)


@dataclass
class TestIssuer:
    """An issuer with one current key."""

    __test__ = False
    issuer: str = "https://issuer.example"
    kind: str = "P-256"
    algorithm: str = "ES256"
    number: int = 0
    key: Any = None

    def __post_init__(self) -> None:
        self.rotate()

    def rotate(self) -> None:
        """Replace the key."""
        self.number += 1
        self.key = key_of(self.kind, f"k{self.number}")

    @property
    def jwks(self) -> bytes:
        """The set of public keys."""
        return json.dumps({"keys": [self.key.as_dict(private=False)]}).encode()

    def claims(self, **changes: object) -> dict[str, Any]:
        """Return the claims of a valid token, with changes; None removes a claim."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600} | changes
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, header: dict[str, object] | None = None, key: Any = None, **changes: object) -> str:
        """Return a token, signed with the current key or another key."""
        key = key or self.key
        told = {"alg": self.algorithm, "kid": key.kid, "typ": "JWT"} | (header or {})
        told = {name: value for name, value in told.items() if value is not None}
        registry = jws.JWSRegistry(algorithms=[str(told["alg"])], strict_check_header=False)
        content = json.dumps(self.claims(**changes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # EdDSA is a deprecated name
            return str(jws.serialize_compact(told, content, key, registry=registry))


@dataclass
class KeyServer:
    """Server for an issuer's discovery document and keys, over https."""

    issuer: TestIssuer
    authority: Authority
    folder: Path
    fetches: int = 0
    bearers: set[str] = field(default_factory=set)
    """Tokens in the requests for the keys."""
    answers: bool = True
    padding: int = 0
    """Number of bytes that the server appends to the keys."""
    _server: asyncio.Server | None = field(default=None, repr=False)

    @property
    def ca(self) -> Path:
        """File with the authority of the server."""
        return self.folder / "ca.crt"

    async def start(self) -> None:
        """Serve on a free port, which becomes part of the issuer's name."""
        tls = self.authority.issue().write(self.folder, self.authority)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        port = self._server.sockets[0].getsockname()[1]
        self.issuer.issuer = f"https://127.0.0.1:{port}"

    async def stop(self) -> None:
        """Stop serving."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1]
        self.bearers |= {each.decode() for each in re.findall(rb"(?i)authorization: bearer (\S+)", head)}
        if not self.answers:
            status, body = b"503 Unavailable", b""
        elif path == b"/keys":
            self.fetches += 1
            status, body = b"200 OK", self.issuer.jwks + b" " * self.padding
        else:
            assert path == b"/.well-known/openid-configuration", path
            document = {"issuer": self.issuer.issuer, "jwks_uri": f"{self.issuer.issuer}/keys"}
            status, body = b"200 OK", json.dumps(document).encode()
        lines = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
        writer.write(lines + body)
        await writer.drain()
        writer.close()
