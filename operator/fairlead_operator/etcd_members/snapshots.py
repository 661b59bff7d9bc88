"""Snapshot of etcd's store, streamed by one member through the JSON gateway.

A snapshot ends with the SHA-256 of its other bytes, which `etcdutl snapshot restore` checks as well. Any member can
stream its store, even without a majority.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
from collections.abc import AsyncIterator
from typing import Final

import aiohttp

from fairlead_operator.etcd_members.errors import EtcdUnavailable

SILENCE_SECONDS_MAX: Final = 30.0
"""Maximum time without a byte; a whole snapshot may take minutes."""
LINE_BYTES_MAX: Final = 8 << 20
"""Maximum size of one JSON object of the stream, far above the 44 KiB that etcd sends."""


async def stream_snapshot(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[bytes]:
    """Yield the bytes of a snapshot; `tls`: TLS context for a member that uses TLS.

    Raises `EtcdUnavailable`, including when the stream ends early.
    """
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=SILENCE_SECONDS_MAX, sock_read=SILENCE_SECONDS_MAX
    )
    left: int | None = None
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{url}/v3/maintenance/snapshot", json={}, ssl=tls or True) as response,
        ):
            async for line in _lines(response.content):
                blob, left = _part(url, line)
                yield blob
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        said = f"snapshot of etcd at {url}: {error!r}"
        raise EtcdUnavailable(said) from error
    if left != 0:
        said = f"snapshot of etcd at {url}: the stream ended early"
        raise EtcdUnavailable(said)


async def revision_of(url: str, tls: ssl.SSLContext | None = None) -> int:
    """Return the revision of a member's store. Raises `EtcdUnavailable`."""
    timeout = aiohttp.ClientTimeout(total=SILENCE_SECONDS_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{url}/v3/maintenance/status", json={}, ssl=tls or True) as response,
        ):
            answer = await response.json()
        return int(answer["header"]["revision"])
    except (aiohttp.ClientError, TimeoutError, OSError, KeyError, TypeError, ValueError) as error:
        said = f"status of etcd at {url}: {error!r}"
        raise EtcdUnavailable(said) from error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the JSON objects of the stream, one on each line."""
    waiting = bytearray()
    async for data in content.iter_any():
        waiting += data
        *whole, rest = bytes(waiting).split(b"\n")
        for line in filter(None, whole):
            yield line
        waiting = bytearray(rest)
        if len(waiting) > LINE_BYTES_MAX:
            said = f"a part of the snapshot has more than {LINE_BYTES_MAX} bytes"
            raise aiohttp.ClientPayloadError(said)
    if waiting:
        yield bytes(waiting)


def _part(url: str, line: bytes) -> tuple[bytes, int]:
    """Return the bytes of one part of the stream, and the number of bytes that follow."""
    try:
        answer = json.loads(line)
        result = answer["result"]
        return base64.b64decode(result.get("blob", ""), validate=True), int(result.get("remaining_bytes", 0))
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        said = f"snapshot of etcd at {url}: {line[:200]!r}"
        raise EtcdUnavailable(said) from error
