"""A real OIDC provider: the server of zitadel's library for Go, built once and kept in the user's cache, with one user.

`oidc_go/main.go` is the program. To update the library, change the version in `oidc_go/go.mod` and run `go mod tidy` in
that folder. The name of the cached program depends on `go.sum` only, so a change of `main.go` also changes `PROGRAM`.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import etcd_build
from certificate_kit import Authority
from waiting import pause_blocking

MODULE: Final = Path(__file__).with_name("oidc_go")
PROGRAM: Final = "oidc"
USER, USER_ID, PASSWORD = "test-user2", "id2", "verysecure"
SECRET: Final = "secret-of-clients"
REDIRECT: Final = "http://localhost:5555/callback"
CLIENTS: Final = ("fairlead", "other")
"""Programs that may request tokens; a token's audience is the program's id."""
FORM: Final = "application/x-www-form-urlencoded"
HOPS_MAX: Final = 10
STARTED_SECONDS_MAX: Final = 60.0
PAUSE_SECONDS: Final = 0.1


def program() -> Path:
    """Return the program, after building it if it is missing. Raise `EtcdNotBuilt` if the build fails."""
    return etcd_build.built(PROGRAM, MODULE, {PROGRAM: "."}) / PROGRAM


@dataclass
class OidcServer:
    """A provider that has a new key after each start."""

    folder: Path
    redirect: str = REDIRECT
    """Address to which the provider sends codes."""
    _port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def create(cls, folder: Path, redirect: str = REDIRECT) -> Self:
        """Return a provider that is not running yet, with a certificate in a folder."""
        authority = Authority.make("Issuer")
        authority.issue().write(folder, authority)
        with socket.create_server(("127.0.0.1", 0)) as free:
            return cls(folder, redirect, free.getsockname()[1])

    @property
    def issuer(self) -> str:
        """Name of the issuer, which is its address."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca(self) -> Path:
        """File with the authority of the provider's certificate."""
        return self.folder / "ca.crt"

    def start(self) -> None:
        """Start the provider, and wait until it answers; the provider does not report when it listens."""
        files = [str(self.folder / "tls.crt"), str(self.folder / "tls.key")]
        command = [str(program()), self.issuer, f"127.0.0.1:{self._port}", *files, self.redirect, *CLIENTS]
        log = self.folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        for _ in range(int(STARTED_SECONDS_MAX / PAUSE_SECONDS)):
            assert self._process.poll() is None, log.read_text()
            with suppress(OSError):
                self._discovered()
                return
            pause_blocking(PAUSE_SECONDS)
        raise AssertionError(log.read_text())

    def stop(self) -> None:
        """Stop the provider."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def token(self, client: str = CLIENTS[0]) -> str:
        """Return a token of the user for a program, through the authorization code flow."""
        endpoints = self._discovered()
        query = {"client_id": client, "redirect_uri": REDIRECT, "response_type": "code", "state": "x"}
        url = f"{endpoints['authorization_endpoint']}?{urlencode({**query, 'scope': 'openid'})}"
        for _ in range(HOPS_MAX):
            if url.startswith(REDIRECT):
                break
            [form] = parse_qs(urlsplit(url).query).get("authRequestID", [None])
            fields = None if form is None else {"id": form, "username": USER, "password": PASSWORD}
            status, headers, body = self._send(url.partition("?")[0] if fields else url, fields)
            assert status in (302, 303), (url, status, body)
            url = urljoin(url, headers["location"])
        [code] = parse_qs(urlsplit(url).query)["code"]
        asked = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT}
        proof = base64.b64encode(f"{client}:{SECRET}".encode()).decode()
        status, _, body = self._send(str(endpoints["token_endpoint"]), asked, f"Basic {proof}")
        assert status == 200, body
        return str(json.loads(body)["id_token"])

    def _discovered(self) -> dict[str, object]:
        _, _, body = self._send(f"{self.issuer}/.well-known/openid-configuration")
        return dict(json.loads(body))

    def _send(
        self, url: str, form: dict[str, str] | None = None, authorization: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a form, or get a page; return status, headers and body."""
        place = urlsplit(url)
        context = ssl.create_default_context(cafile=self.ca)
        connection = HTTPSConnection(place.hostname or "", place.port, context=context, timeout=30)
        headers = {} if form is None else {"Content-Type": FORM}
        if authorization is not None:
            headers["Authorization"] = authorization
        path = f"{place.path}?{place.query}" if place.query else place.path
        body = None if form is None else urlencode(form)
        connection.request("GET" if form is None else "POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content
