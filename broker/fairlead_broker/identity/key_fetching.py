"""Fetches an issuer's keys by https, by http from this machine, or from a file (rules A14, A17).

`refreshing` calls this module. The size of an answer and the time allowed for the answer are limited. Redirects are not
followed, and no data from a client determines which address is called.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
import pyreqwest.client
import pyreqwest.exceptions

from fairlead_broker.credentials.key_addresses import is_allowed, is_url
from fairlead_broker.peers.http_clients import cancellable
from fairlead_broker.peers.http_threads import rest_before_exit

BYTES_MAX: Final = 1 << 20
SECONDS_MAX: Final = 5.0
DISCOVERY: Final = "/.well-known/openid-configuration"


class KeysUnavailable(Exception):
    """Raised when keys cannot be fetched. The text of the error states the reason."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """Location of an issuer's keys."""

    issuer: str
    jwks: str | None = None
    """URL or file of the keys; None if the issuer's discovery document names the URL."""
    ca: Path | None = None
    """File with authorities that are accepted in addition to the system's."""
    bearer_file: Path | None = None
    """File with the bearer token that is sent when the keys are fetched."""


async def fetch(source: KeySource) -> bytes:
    """Return the document with the keys of an issuer. Raises `KeysUnavailable`."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            if source.jwks is not None and not is_url(source.jwks):
                return await asyncio.to_thread(_read, Path(source.jwks))
            return await _fetched(source)
    except TimeoutError as error:
        message = f"no answer within {SECONDS_MAX:.0f} s"
        raise KeysUnavailable(message) from error
    except OSError as error:
        raise KeysUnavailable(str(error)) from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(BYTES_MAX)


async def _fetched(source: KeySource) -> bytes:
    ca = None if source.ca is None else await asyncio.to_thread(_read, source.ca)
    bearer = None if source.bearer_file is None else await asyncio.to_thread(_read, source.bearer_file)
    rest_before_exit()
    builder = (
        pyreqwest.client.ClientBuilder()
        .timeout(timedelta(seconds=SECONDS_MAX))
        .follow_redirects(False)
        .no_proxy()
        .user_agent("fairlead-broker")
    )
    if ca is not None:
        builder = builder.add_root_certificate_pem(ca)
    try:
        with cancellable():
            async with builder.build() as client:
                url = source.jwks or await _discovered(client, source.issuer, bearer)
                return await _get(client, url, bearer)
    except pyreqwest.exceptions.DetailedPyreqwestError as error:
        causes = (error.details or {}).get("causes") or []
        raise KeysUnavailable(causes[-1]["message"] if causes else error.message) from error
    except (pyreqwest.exceptions.PyreqwestError, ValueError) as error:
        raise KeysUnavailable(str(error)) from error


async def _discovered(client: pyreqwest.client.Client, issuer: str, bearer: bytes | None) -> str:
    document = await _get(client, issuer.rstrip("/") + DISCOVERY, bearer)
    try:
        found = msgspec.json.decode(document, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        message = "the discovery document of the issuer cannot be read"
        raise KeysUnavailable(message) from error
    url = found.get("jwks_uri")
    if found.get("issuer") != issuer or not isinstance(url, str):
        message = f"the discovery document is for the issuer {found.get('issuer')}"
        raise KeysUnavailable(message)
    return url


async def _get(client: pyreqwest.client.Client, url: str, bearer: bytes | None) -> bytes:
    if not is_allowed(url):
        message = f"{url} is neither an https address nor on this machine"
        raise KeysUnavailable(message)
    request = client.get(url)
    if bearer is not None:
        request = request.header("authorization", f"Bearer {bearer.decode('ascii', 'replace').strip()}")
    parts: list[bytes] = []
    async with request.build_streamed() as response:
        if response.status != HTTPStatus.OK:
            message = f"{url} answers status {response.status}"
            raise KeysUnavailable(message)
        size = 0
        while (part := await response.body_reader.read(1 << 16)) is not None:
            size += len(part)
            if size > BYTES_MAX:
                message = f"{url} answers more than {BYTES_MAX} bytes"
                raise KeysUnavailable(message)
            parts.append(bytes(part))
    return b"".join(parts)
