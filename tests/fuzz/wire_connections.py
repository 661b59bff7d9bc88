"""Connections that send bad inputs to a broker, read every answer, and judge it.

`wire_mutations.py` opens these connections. An answer must be a success or a problem of the catalogue, and never a
failure (500). The HTTP server itself may answer a malformed head or body with 400 and no body, or close the connection.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from hpack import Decoder, HPACKError

from fairlead_api.bodies.media_types import PROBLEM
from fairlead_api.problems import CATALOGUE
from request_mutations import Request
from wire_inputs import (
    HEADERS,
    HOST,
    head_of,
    malformed_chunks,
    malformed_frames,
    malformed_head,
    message,
    target_of,
    wire_requests,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PIPELINED: Final = 16
"""Number of requests that a connection has in flight."""
ANSWER_SECONDS: Final = 120.0
"""Time limit for the answers to the requests in flight, on a busy machine."""
IDLE_SECONDS: Final = 0.25
"""Time after which a connection with a malformed input is closed, because the broker may wait for more."""
READ_BYTES: Final = 1 << 16
WITHOUT_BODY: Final = (204, 304)


class BadAnswerError(Exception):
    """Raised for an answer that a broker must never give; contains the input and the answer."""


@dataclass(slots=True)
class Counts:
    """Counts of inputs and answers."""

    inputs: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    """Inputs that the broker answered by closing the connection, or not at all, by kind."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer over HTTP/1.1."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


@dataclass(slots=True)
class Attacker:
    """Sends inputs from one seed until `over` returns True."""

    address: tuple[str, int]
    counts: Counts
    seed: str
    topic_id: str
    over: Callable[[], bool]
    stranger: bool = False
    """Whether the broker must refuse every request."""
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    # ------------------------------------------------------------------------------------------ kinds of inputs

    async def requests(self) -> None:
        """Send mutated requests over HTTP/1.1, pipelined on connections that stay open."""
        source = wire_requests(self.rng, self.topic_id)
        while not self.over():
            async with self._connection() as (reader, writer):
                while not self.over():
                    sent = [source.next() for _ in range(PIPELINED)]
                    writer.write(b"".join(map(message, sent)))
                    async with asyncio.timeout(ANSWER_SECONDS):
                        stays_open = await self._answers(reader, sent)
                    if not stays_open:
                        break

    async def _answers(self, reader: asyncio.StreamReader, sent: list[Request]) -> bool:
        """Read the answers to requests; return whether the connection stays open."""
        for number, request in enumerate(sent):
            answer = await read_answer(reader, request.method)
            if answer is None:
                # After an answer, the broker might close the connection, and the following requests then get no answer.
                if number == 0:
                    message = f"the broker closed the connection without an answer to {request}"
                    raise BadAnswerError(message)
                return False
            self.counts.inputs["requests over HTTP/1.1"] += 1
            self._judge(answer, request, empty=request.method == "HEAD")
            if answer.headers.get(b"connection") == b"close":
                return False
        return True

    async def chunks(self) -> None:
        """Send requests whose chunked bodies are malformed."""
        source = wire_requests(self.rng, self.topic_id)
        while not self.over():
            await self._malformed("chunked bodies", malformed_chunks(self.rng, source.next()))

    async def heads(self) -> None:
        """Send malformed HTTP/1.1 heads."""
        while not self.over():
            await self._malformed("heads of HTTP/1.1", malformed_head(self.rng))

    async def _malformed(self, kind: str, data: bytes) -> None:
        answered = False
        async with self._connection() as (reader, writer):
            writer.write(data)
            while True:
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        answer = await read_answer(reader, data.split(b" ", 1)[0].decode("latin-1"))
                except TimeoutError:
                    break
                if answer is None:
                    break
                answered = True
                self._judge(answer, data, empty=True)
        self.counts.inputs[kind] += 1
        self.counts.closed[kind] += not answered

    async def frames(self) -> None:
        """Send malformed HTTP/2 frames."""
        while not self.over():
            data, received = malformed_frames(self.rng), bytearray()
            async with self._connection() as (reader, writer):
                writer.write(data)
                with suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        while piece := await reader.read(READ_BYTES):
                            received += piece
            statuses = list(statuses_of(bytes(received)))
            self.counts.inputs["frames of HTTP/2"] += 1
            self.counts.statuses.update(statuses)
            self.counts.closed["frames of HTTP/2"] += not statuses
            if any(status >= 500 for status in statuses):
                message = f"answers {statuses} to the frames {data!r}"
                raise BadAnswerError(message)

    async def streams(self) -> None:
        """Send mutated requests over HTTP/2, on connections that stay open."""
        source = wire_requests(self.rng, self.topic_id)
        while not self.over():
            async with self._connection() as (reader, writer):
                streams = Streams(reader, writer)
                while not self.over() and streams.open:
                    sent = [source.next() for _ in range(PIPELINED)]
                    async with asyncio.timeout(ANSWER_SECONDS):
                        answers = await streams.exchange(sent)
                    for request, answer in zip(sent, answers, strict=True):
                        self.counts.inputs["requests over HTTP/2"] += 1
                        if answer is None:
                            self.counts.closed["requests over HTTP/2"] += 1
                        else:
                            self._judge(answer, request, empty=request.method == "HEAD")

    # ------------------------------------------------------------------------------------------ connections and answers

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection. An error on the connection ends only the work on this connection."""
        reader, writer = await asyncio.open_connection(*self.address, limit=1 << 20)
        try:
            yield reader, writer
        except (ConnectionError, asyncio.IncompleteReadError):
            self.counts.closed["connections broken"] += 1
        finally:
            writer.transport.abort()

    def _judge(self, answer: Answer, sent: Request | bytes, *, empty: bool) -> None:
        self.counts.statuses[answer.status] += 1
        fault = fault_of(answer, empty=empty)
        if fault is None and self.stranger and 200 <= answer.status < 300:
            fault = "a stranger was served"
        if fault is not None:
            message = f"{fault}: {answer.status} {answer.body[:300]!r} to {repr(sent)[:3000]}"
            raise BadAnswerError(message)


def fault_of(answer: Answer, *, empty: bool) -> str | None:
    """Return the fault of an answer, or None; with `empty`, a refusal without a body is allowed."""
    if answer.status < 200 or answer.status in (500, 501, 502):
        return "a failure"
    if answer.status < 400 or (empty and not answer.body):
        return None
    kind = answer.headers.get(b"content-type", b"").decode("latin-1")
    if kind.partition(";")[0] != PROBLEM:
        return f"a refusal of the type {kind!r}"
    problem = json.loads(answer.body)
    definition = CATALOGUE.get(problem.get("code"))
    if definition is None or problem.get("status") != answer.status:
        return "no problem of the catalogue"
    return None


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer | None:
    """Read one answer over HTTP/1.1; return None at the end of the connection."""
    status, lines = 100, list[bytes]()
    while status < 200:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                message = f"an answer ends in its head: {error.partial[:300]!r}"
                raise BadAnswerError(message) from error
            return None
        first, *lines = head[:-4].split(b"\r\n")
        status = int(first[9:12])
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if method == "HEAD" or status in WITHOUT_BODY:
        return Answer(status, headers, b"")
    if headers.get(b"transfer-encoding") == b"chunked":
        body = bytearray()
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return Answer(status, headers, bytes(body))
    return Answer(status, headers, await reader.readexactly(int(headers.get(b"content-length", b"0"))))


class Streams:
    """One HTTP/2 connection with many requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        # The checks of the library would refuse mutated heads before they are sent; `fault_of` judges the answers.
        self._connection = H2Connection(
            H2Configuration(
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
            )
        )
        self._connection.initiate_connection()
        self.open = True

    async def exchange(self, requests: list[Request]) -> list[Answer | None]:
        """Send requests together; return an answer to each, or None where the broker broke the stream."""
        heads: dict[int, tuple[int, dict[bytes, bytes]]] = {}
        bodies: dict[int, bytearray] = {}
        unsent: dict[int, bytes] = {}
        waiting: set[int] = set()
        numbers = []
        for request in requests:
            number = self._connection.get_next_available_stream_id()
            named = [(":method", request.method), (":scheme", "http"), (":authority", HOST)]
            named += [(":path", target_of(request)), *head_of(request)]
            named.append(("content-length", str(len(request.body))))
            encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in named]
            self._connection.send_headers(number, encoded, end_stream=not request.body)
            numbers.append(number)
            waiting.add(number)
            if request.body:
                unsent[number] = request.body
        while waiting and self.open:
            self._send(unsent)
            data = await self._reader.read(READ_BYTES)
            if not data:
                self.open = False
                break
            for event in self._connection.receive_data(data):
                match event:
                    case ResponseReceived(stream_id=number, headers=headers):
                        named_headers = {bytes(name): bytes(value) for name, value in headers}
                        heads[number] = int(named_headers[b":status"]), named_headers
                    case DataReceived(stream_id=number, data=piece, flow_controlled_length=length):
                        bodies.setdefault(number, bytearray()).extend(piece)
                        self._connection.acknowledge_received_data(length, number)
                    case StreamEnded(stream_id=number):
                        waiting.discard(number)
                    case StreamReset(stream_id=number):
                        waiting.discard(number)
                        unsent.pop(number, None)
                    case ConnectionTerminated():
                        self.open = False
                    case _:
                        pass
        return [
            Answer(*heads[number], bytes(bodies.get(number, b"")))
            if number in heads and number not in waiting
            else None
            for number in numbers
        ]

    def _send(self, unsent: dict[int, bytes]) -> None:
        """Send as much of the bodies as the windows of the broker allow."""
        for number, body in list(unsent.items()):
            try:
                room = min(
                    self._connection.local_flow_control_window(number),
                    self._connection.max_outbound_frame_size,
                )
                if room <= 0:
                    continue
                self._connection.send_data(number, body[:room], end_stream=len(body) <= room)
            except ProtocolError:
                # The broker has answered and closed the stream before it read the whole body.
                room = len(body)
            unsent[number] = body[room:]
            if not unsent[number]:
                del unsent[number]
        self._writer.write(self._connection.data_to_send())


def statuses_of(data: bytes) -> Iterator[int]:
    """Yield the statuses in the frames that a broker sent."""
    decoder, at = Decoder(), 0
    while at + 9 <= len(data):
        size, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
        if kind == HEADERS:
            with suppress(HPACKError):
                fields = dict(decoder.decode(data[at + 9 : at + 9 + size], raw=True))
                yield int(fields.get(b":status", b"0"))
        at += 9 + size
