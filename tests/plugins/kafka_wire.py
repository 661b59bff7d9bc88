"""Requests of Kafka's protocol on one connection, in any version, for tests of the Kafka listener."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from fairlead_broker.kafka.protocol.apis import APIS, ApiKey
from fairlead_broker.kafka.protocol.messages import MESSAGES, is_flexible

SECONDS_MAX = 20.0


class KafkaConnection:
    """Connection to a Kafka listener that sends one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Self]:
        """Connect to `host:port`, and close the connection at the end."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    @property
    def certificate(self) -> bytes:
        """Certificate of the broker in DER, for a connection with TLS."""
        found: bytes = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    async def send(self, key: ApiKey, version: int, request: Any) -> None:
        """Send a request with a client id."""
        self._correlation_id += 1
        header = struct.pack(">hhih", key, version, self._correlation_id, 4) + b"test"
        if is_flexible(APIS[key], version):
            header += b"\0"
        data = header + bytes(request.encode(version=version))
        self._writer.write(struct.pack(">i", len(data)) + data)

    async def answer(self, key: ApiKey, version: int) -> Any:
        """Return the next response, decoded. Raises IncompleteReadError if the broker closes the connection."""
        async with asyncio.timeout(SECONDS_MAX):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            data = memoryview(await self._reader.readexactly(size))
        (correlation_id,) = struct.unpack_from(">i", data)
        assert correlation_id == self._correlation_id
        tagged = is_flexible(APIS[key], version) and key is not ApiKey.API_VERSIONS
        return MESSAGES[key][1].decode(data[5 if tagged else 4 :], version=version)

    async def ask(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """Send a request with these fields, and return its response."""
        await self.send(key, version, message(MESSAGES[key][0], version, fields))
        return await self.answer(key, version)


def message(kind: Any, version: int, fields: dict[str, Any]) -> Any:
    """Return a message with the fields that it has in a version; structures are dictionaries of their fields."""
    known = {field.name: field for field in kind._struct.fields.values()}
    values = {}
    for name, value in fields.items():
        field = known[name]
        inner = getattr(field, "data_class", None)
        if inner is not None and not inner._struct.min_version <= version <= inner._struct.max_version:
            continue
        if isinstance(value, dict):
            values[name] = message(inner, version, value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            values[name] = [message(inner, version, each) for each in value]
        else:
            values[name] = value
    return kind(version=version, **values)
