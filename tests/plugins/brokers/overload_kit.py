"""A broker as a process under load: its memory, the latencies of a well-behaved client, and raw HTTP/2.

Used by tests/overload. Frames are written by hand, because no client library sends the frames of an attacker.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from broker_kit import Calls
from certificate_kit import Authority
from fairlead_api.batch.batches import encode, record_batch
from fairlead_broker.clock import SystemClock
from warm_programs import WarmProcess, start

MIB = 1 << 20
FREE = "127.0.0.1:0"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CANCEL = 8
INITIAL_WINDOW_SIZE, HEADER_TABLE_SIZE = 4, 1
STATUS_200 = 0x88
"""Field `:status: 200` in HPACK's static table."""

now = SystemClock().monotonic


# ------------------------------------------------------------------------------------------------ the broker


class BrokerUnderLoad:
    """One `fairlead broker start`, with small limits where tests reach them."""

    def __init__(self, folder: Path, **limits: object) -> None:
        """Store settings of the group `limits`, given by name."""
        self.folder = folder
        self._environment = {f"FAIRLEAD_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
        self.token_file: Path | None = None
        """Token of the administrator, if the broker enforces access rules."""
        self.ca_pem: bytes | None = None
        """Authority of the broker's certificate, if the broker uses TLS."""
        self.process: WarmProcess | None = None
        self.address = ""
        self.ops = ""

    def enforce(self) -> None:
        """Make the next start enforce access rules, with an administrator."""
        self.token_file = self.folder / "admin.token"
        self._environment |= {
            "FAIRLEAD_SECURITY": "enforce",
            "FAIRLEAD_ADMIN_TOKEN_FILE": str(self.token_file),
        }

    def use_tls(self) -> None:
        """Make the next start use TLS on every listener."""
        authority = Authority.make()
        self.ca_pem = authority.pem
        folder = authority.issue().write(self.folder / "tls", authority)
        self._environment |= {"FAIRLEAD_TLS": str(folder)}

    @property
    def token(self) -> str | None:
        """Token of the administrator; None if the broker enforces no access rules."""
        return None if self.token_file is None else self.token_file.read_text().strip()

    @property
    def cpu_seconds(self) -> float:
        """Processor time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def start(self) -> None:
        """Start the process and wait until the broker serves."""
        process = self.spawn()
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        assert line, (self.folder / "broker.log").read_text()[-2000:]
        ready = json.loads(line)["brokers"][0]
        self.address = ready["data"].rpartition("/")[2]
        self.ops = ready["ops"].rpartition("/")[2]

    def spawn(self) -> WarmProcess:
        """Start the process without waiting."""
        self.kill()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        command = [
            "broker",
            "start",
            "--output",
            "json",
            "--data",
            str(self.folder / "data"),
            "--listen",
            FREE,
        ]
        command += ["--peer-listen", FREE, "--ops-listen", FREE]
        with (self.folder / "broker.log").open("ab") as log:
            self.process = start(*command, environment={**kept, **self._environment}, errors=log)
        return self.process

    @property
    def host(self) -> str:
        """Host of the data listener."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Port of the data listener."""
        return int(self.address.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """Id of the running process."""
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def memory_mib(self) -> float:
        """Resident memory in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def metric(self, name: str) -> float:
        """Return the value of the series with this name, including its labels, from the ops listener."""
        with urllib.request.urlopen(f"http://{self.ops}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    @property
    def descriptors(self) -> int:
        """Number of open files and sockets."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """Open a connection, with a small receive buffer if given, so that unread bytes stay with the broker."""
        connection = socket.socket()
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.connect((self.host, self.port))
        connection.setblocking(False)
        return connection

    async def stop(self, number: int) -> tuple[int, float]:
        """Send a signal and wait for the end; return exit code and seconds."""
        assert self.process is not None
        begun = now()
        self.process.send_signal(number)
        code = await asyncio.to_thread(self.process.wait, 60)
        return code, now() - begun

    def output(self) -> bytes:
        """Return the stdout of the ended program."""
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def kill(self) -> None:
        """Kill the process if it runs."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait(20)
            if process.stdout is not None:
                process.stdout.close()


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition that only polling shows; return whether the condition was met in time."""
    end = now() + seconds
    while not condition():
        if now() > end:
            return False
        await pause(0.05)
    return True


async def pause(seconds: float) -> None:
    """Wait for a fixed time, which no event ends: between two polls, or between two requests of a load."""
    await asyncio.sleep(seconds)  # noqa: TID251 - a fixed time, which no event ends


# ------------------------------------------------------------------------------------------------ a client


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of a client in milliseconds."""

    count: int
    failures: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float], failures: int = 0) -> Self:
        """Return the percentiles of samples, infinite without samples."""
        ordered = sorted(seconds) or [float("inf")]
        at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99, 1.0)]
        return cls(len(seconds), failures, *(round(each * 1000, 2) for each in at))


class WellBehavedClient:
    """Produces a small batch and reads it back at a calm pace, and measures the time of both."""

    def __init__(self, calls: Calls, topic: str = "calm", interval_seconds: float = 0.02) -> None:
        self._calls = calls
        self._topic = topic
        self._interval = interval_seconds
        self._samples: list[float] = []
        self._failures = 0
        self._batch = one_batch(1000, 1)

    async def create(self) -> None:
        """Create the client's topic."""
        await self._calls.create(self._topic)

    async def run(self, seconds: float) -> Latencies:
        """Run for `seconds` and return the latencies."""
        end = now() + seconds
        self._samples, self._failures = [], 0
        while now() < end:
            begun = now()
            if await self._turn():
                self._samples.append(now() - begun)
            else:
                self._failures += 1
            await pause(max(0.0, self._interval - (now() - begun)))
        return Latencies.of(self._samples, self._failures)

    async def _turn(self) -> bool:
        stored = await self._calls.send(self._topic, self._batch)
        if stored.status != 200:
            return False
        path = f"/v1/topics/{self._topic}/partitions/0/records?offset={stored.json['base_offset']}"
        read = await self._calls.call("GET", path, None, {"accept": "application/vnd.fairlead.batches"})
        return read.status == 200


@asynccontextmanager
async def calm_client(broker: BrokerUnderLoad) -> AsyncIterator[WellBehavedClient]:
    """Yield a well-behaved client with a separate topic."""
    async with Calls(broker.address, broker.ca_pem, broker.token) as calls:
        client = WellBehavedClient(calls)
        await client.create()
        yield client


def one_batch(value_bytes: int, count: int, *, random: bool = True) -> bytes:
    """Return a batch of `count` values; random values do not compress."""
    values = [os.urandom(value_bytes) if random else bytes(value_bytes) for _ in range(count)]
    return encode(record_batch(list(values), default_timestamp_us=SystemClock().now_us())).to_bytes()


# ------------------------------------------------------------------------------------------------ HTTP/2 by hand


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in values.items()))


def block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as HPACK literals that no table stores (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in fields)


def request_block(method: str, path: str, **headers: str) -> bytes:
    """Return the headers of a request; names are written with underscores."""
    pseudo = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
    return block([*pseudo, *((name.replace("_", "-"), value) for name, value in headers.items())])


def reset(stream: int) -> bytes:
    """Return a frame that resets a stream."""
    return frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def _literal(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, coded = len(data) - 127, bytearray([127])
    while rest >= 128:
        coded.append(rest % 128 | 128)
        rest //= 128
    return bytes([*coded, rest]) + data


class Http2Load(asyncio.Protocol):
    """One connection that posts the same body at the requested rate and measures each answer.

    The request is encoded once, which is cheap enough to overload a broker on the same machine.
    """

    def __init__(self, path: str, body: bytes, **headers: str) -> None:
        self._head = request_block("POST", path, content_length=str(len(body)), **headers)
        self._body = body
        self._stream = -1
        self._buffer = bytearray()
        self._begun: dict[int, float] = {}
        self._refused_streams: set[int] = set()
        self._settings = False
        self._window = 65_535
        self._stream_window = 65_535
        self._frame_bytes = 16_384
        self.transport: asyncio.Transport | None = None
        self.stored: list[tuple[float, float]] = []
        """Time of the answer to each stored request, and its latency in seconds."""
        self.refused: list[tuple[float, float]] = []
        self.on_answer: Callable[[], None] = lambda: None
        self.ready = asyncio.Event()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection."""
        self.transport = transport = cast("asyncio.Transport", transport)
        window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        transport.write(PREFACE + settings({HEADER_TABLE_SIZE: 0, INITIAL_WINDOW_SIZE: 1 << 30}) + window)

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        self.lost = True

    @property
    def unanswered(self) -> int:
        """Number of requests in flight."""
        return len(self._begun)

    @property
    def may_send(self) -> bool:
        """Whether the server's windows allow a whole request."""
        assert self.transport is not None
        fits = self._window >= len(self._body) and self._stream_window >= len(self._body)
        return not self.lost and fits and self.transport.get_write_buffer_size() < 64 * MIB

    def send(self) -> None:
        """Send one request."""
        assert self.transport is not None
        self._stream += 2
        pieces = [frame(HEADERS, END_HEADERS, self._stream, self._head)]
        for at in range(0, len(self._body), self._frame_bytes):
            piece = self._body[at : at + self._frame_bytes]
            last = at + len(piece) == len(self._body)
            pieces.append(frame(DATA, END_STREAM if last else 0, self._stream, piece))
        self._window -= len(self._body)
        self._begun[self._stream] = now()
        self.transport.writelines(pieces)

    def data_received(self, data: bytes) -> None:
        """Handle received frames."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            length = int.from_bytes(buffer[at : at + 3])
            if len(buffer) - at < 9 + length:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9])
            self._frame(kind, flags, stream, bytes(buffer[at + 9 : at + 9 + length]))
            at += 9 + length
        del buffer[:at]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self.transport is not None
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW_SIZE:
                    self._stream_window = value
                elif name == 5:
                    self._frame_bytes = value
            self.transport.write(frame(SETTINGS, ACK, 0))
            self._settings = True
            self._check_ready()
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload) & 0x7FFFFFFF
            self._check_ready()
        elif kind == HEADERS:
            self._answered(stream, payload)
        elif kind == RST_STREAM:
            self._begun.pop(stream, None)

    def _check_ready(self) -> None:
        """Allow the first request: the server's settings and its larger window for the connection have arrived."""
        if self._settings and self._window >= 1 << 20:
            self.ready.set()

    def _answered(self, stream: int, payload: bytes) -> None:
        begun = self._begun.pop(stream, None)
        if begun is None:
            return
        at = now()
        # An HPACK table size update may precede the status, since this client allows no dynamic table.
        status = payload[1] if payload[0] & 0xE0 == 0x20 else payload[0]
        (self.stored if status == STATUS_200 else self.refused).append((at, at - begun))
        self.on_answer()
