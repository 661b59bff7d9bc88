"""Behaviour of single HTTP/2 streams, frame by frame, without a client library."""

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping

import pytest

RECORDS = "/v1/topics/flights/partitions/0/records"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CANCEL = 8


class Connection:
    """HTTP/2 connection that sends and reads single frames (RFC 9113, 4.1)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))

    def request(self, stream: int, path: str) -> None:
        """Send a GET without a body."""
        fields = {":method": "GET", ":scheme": "http", ":authority": "localhost", ":path": path}
        self.writer.write(frame(HEADERS, END_STREAM | END_HEADERS, stream, field_block(fields)))

    def post(self, stream: int, path: str, body: bytes) -> None:
        """Send a POST with its whole body, but without ending its stream."""
        fields = {":method": "POST", ":scheme": "http", ":authority": "localhost", ":path": path}
        fields |= {"content-type": "application/json", "content-length": str(len(body))}
        self.writer.write(frame(HEADERS, END_HEADERS, stream, field_block(fields)))
        self.writer.write(frame(DATA, 0, stream, body))

    def end(self, stream: int) -> None:
        """Send the end of a stream in a separate frame."""
        self.writer.write(frame(DATA, END_STREAM, stream, b""))

    def reset(self, stream: int) -> None:
        """Reset a stream."""
        self.writer.write(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    async def until_headers(self, stream: int) -> None:
        """Read until the answer on a stream begins."""
        await self.until(HEADERS, stream)

    async def until_ping(self) -> None:
        """Read until the server answers a ping."""
        self.writer.write(frame(PING, 0, 0, bytes(8)))
        await self.until(PING, 0)

    async def until(self, wanted: int, stream: int) -> None:
        """Read until a frame of the given kind and stream arrives; no stream may be reset."""
        async with asyncio.timeout(10):
            while True:
                head = await self.reader.readexactly(9)
                length, kind = int.from_bytes(head[:3]), head[3]
                assert kind != GOAWAY, "the server ended the connection"
                assert kind != RST_STREAM, "the server reset a stream"
                await self.reader.readexactly(length)
                if kind == SETTINGS and not head[4] & ACK:
                    self.writer.write(frame(SETTINGS, ACK, 0, b""))
                if kind == wanted and int.from_bytes(head[5:]) == stream:
                    return


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


def field_block(fields: Mapping[str, str]) -> bytes:
    """Return header fields in HPACK, each as a literal."""
    return b"".join(b"\0" + literal(name) + literal(value) for name, value in fields.items())


def literal(text: str) -> bytes:
    """Return a string of HPACK without Huffman coding."""
    assert len(text) < 127, "longer strings need a continued length"
    return bytes([len(text)]) + text.encode()


@pytest.fixture
async def connection(raw) -> AsyncIterator[Connection]:
    """Yield a connection to the data listener."""
    reader, writer = await asyncio.open_connection(*raw.address.split(":"))
    yield Connection(reader, writer)
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_reset_stream_ends_its_poll(connection, api, broker, polls) -> None:
    """A long poll ends when its stream is reset, and its connection serves other requests."""
    await api.create("flights")
    connection.request(1, f"{RECORDS}?max_wait_ms=60000")
    await polls(broker, 1)
    connection.reset(1)
    await polls(broker, 0)
    connection.request(3, "/v1/versions")

    await connection.until_headers(3)


async def test_streams_overtake_a_waiting_poll(connection, api, broker, polls) -> None:
    """A long poll does not delay other requests on its connection."""
    await api.create("flights")
    connection.request(1, f"{RECORDS}?max_wait_ms=60000")
    await polls(broker, 1)
    connection.request(3, "/v1/versions")

    await connection.until_headers(3)


async def test_a_stream_that_ends_late_is_not_reset(connection, api) -> None:
    """A request whose stream ends in a separate frame, long after its body, is answered and not reset."""
    await api.create("flights")
    connection.post(1, RECORDS, b'[{"value": "on time"}]')
    for stream in (3, 5, 7):
        connection.request(stream, RECORDS + "?min_bytes=1&max_wait_ms=100")
        await connection.until_headers(stream)
    connection.end(1)

    await connection.until_headers(1)
    await connection.until_ping()


async def until_closed(reader: asyncio.StreamReader) -> bool:
    """Read until the server closes the connection."""
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        pass
    return True
