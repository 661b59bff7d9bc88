"""Routing of the batches of one request to the leaders of their partitions, concurrently on all brokers.

Callers: the produce calls. Each other broker gets one request with the unchanged batches for its partitions, and its
results are copied into the answer. This module also reads two headers of a request: the idempotent producer and the
idempotency key. These headers are only for JSON and Arrow bodies, which the broker encodes into batches. A binary batch
contains its producer, and a producer named outside the batch could not be trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from fairlead_api.batch.batches import ProducerStamp
from fairlead_api.batch.extension import IDEMPOTENCY_KEY_BYTES_MAX, REQUEST_DIGEST_BYTES
from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.cloud_events import HEADER_PREFIX
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.bodies.media_types import FRAMES, Header
from fairlead_api.bodies.requests import PartitionProduceResult, ProduceAnswer, ProduceFrameMeta
from fairlead_api.excerpts import shown
from fairlead_api.identifiers import Acks, BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp, parse_timestamp_us
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable, problem_of
from fairlead_broker.runtime import AppendResult, Broker, KeyedRequest, ProduceItem
from fairlead_broker.server.http.access_gate import caller_header
from fairlead_broker.server.http.call import BINARY_EVENT, Call
from fairlead_broker.server.routing.forwarding import Forwarding, no_answer
from fairlead_broker.server.routing.locate import Here, locate

REQUEST_DIGEST: Final = "fairlead-request-digest"
"""Header of calls between brokers that contains a digest, which distinguishes requests with the same idempotency
key."""
UNKNOWN_PLACE: Final = AppendResult(Offset(-1), Offset(-1), TimestampUs(-1), LeaderEpoch(-1))
"""Result of a batch with acks=0, whose offsets are unknown."""

Outcome = AppendResult | ProblemError


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """A batch and its partition."""

    topic_id: TopicId
    partition: PartitionIndex
    batch: memoryview


class ProduceRouting:
    """Router of batches to the leaders of their partitions."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    async def store(
        self,
        call: Call,
        batches: Sequence[RoutedBatch | ProblemError],
        acks: Acks,
        timeout_seconds: float,
        keyed: KeyedRequest | None = None,
    ) -> list[Outcome]:
        """Return the outcome of each batch, in order.

        A problem in `batches` is returned unchanged. An unavailable partition does not prevent other batches from being
        stored. Raises problems of the whole request if this broker leads all partitions of the request.
        """
        outcomes: dict[int, Outcome] = {}
        items: dict[int, ProduceItem] = {}
        elsewhere: dict[BrokerId, dict[int, RoutedBatch]] = {}
        for place, routed in enumerate(batches):
            if isinstance(routed, ProblemError):
                outcomes[place] = routed
                continue
            try:
                found = await locate(call, self._broker, routed.topic_id, routed.partition)
            except ProblemError as problem:
                outcomes[place] = problem
                continue
            if isinstance(found, Here):
                items[place] = ProduceItem(found.replica, routed.batch, keyed)
            else:
                elsewhere.setdefault(found.broker, {})[place] = routed
        if not elsewhere:
            outcomes.update(await self._store_here(items, acks, timeout_seconds))
        else:
            parts = await asyncio.gather(
                self._refused_or_stored(items, acks, timeout_seconds),
                *(
                    self._store_at(call, leader, shares, acks, timeout_seconds, keyed)
                    for leader, shares in elsewhere.items()
                ),
            )
            for part in parts:
                outcomes.update(part)
        return [outcomes[place] for place in range(len(batches))]

    async def _store_here(
        self, items: dict[int, ProduceItem], acks: Acks, timeout_seconds: float
    ) -> dict[int, Outcome]:
        if not items:
            return {}
        stored = await self._broker.producing.produce(
            list(items.values()), acks=acks, timeout_seconds=timeout_seconds
        )
        return dict(zip(items, stored, strict=True))

    async def _refused_or_stored(
        self, items: dict[int, ProduceItem], acks: Acks, timeout_seconds: float
    ) -> dict[int, Outcome]:
        try:
            return await self._store_here(items, acks, timeout_seconds)
        except ProblemError as problem:
            return dict.fromkeys(items, problem)

    async def _store_at(
        self,
        call: Call,
        leader: BrokerId,
        batches: dict[int, RoutedBatch],
        acks: Acks,
        timeout_seconds: float,
        keyed: KeyedRequest | None,
    ) -> dict[int, Outcome]:
        body: list[Buffer] = []
        for routed in batches.values():
            meta = ProduceFrameMeta(topic_id=routed.topic_id, partition=routed.partition)
            body += encode_frame(meta, [routed.batch])
        headers = [("content-type", FRAMES), caller_header(call.access)]
        if keyed is not None:
            headers += [
                (Header.IDEMPOTENCY_KEY.lower(), keyed.key.decode("latin-1")),
                (REQUEST_DIGEST, keyed.digest.hex()),
            ]
        path = f"/v1/produce?acks={acks.value}&timeout_ms={round(timeout_seconds * 1000)}"
        limit = timeout_seconds + ANSWER_MARGIN_SECONDS
        try:
            heard = await self._forwarding.ask(leader, "POST", path, headers, body, limit)
        except PeerUnavailable as unavailable:
            return {
                place: no_answer(unavailable, self._name(routed.topic_id), routed.partition, writing=True)
                for place, routed in batches.items()
            }
        return dict(zip(batches, _outcomes(heard, len(batches)), strict=True))

    def _name(self, topic_id: TopicId) -> str:
        try:
            return self._broker.views.by_id(topic_id).name
        except ProblemError:
            return topic_id


def partition_result(
    partition: int, outcome: AppendResult | ProblemError, *, topic_id: str | UnsetType = UNSET
) -> PartitionProduceResult:
    """Return the entry of one partition in an answer about several partitions."""
    if isinstance(outcome, ProblemError):
        return PartitionProduceResult(
            topic_id=topic_id, partition=partition, problem=dict(outcome.to_document())
        )
    return PartitionProduceResult(
        topic_id=topic_id,
        partition=partition,
        base_offset=outcome.base_offset,
        last_offset=outcome.last_offset,
        log_append_time=format_timestamp(outcome.log_append_time_us),
        leader_epoch=outcome.leader_epoch,
        duplicate=outcome.duplicate,
    )


def _outcomes(heard: PeerAnswer, count: int) -> list[Outcome]:
    if heard.status == HTTPStatus.ACCEPTED:
        return [UNKNOWN_PLACE] * count
    if heard.status >= HTTPStatus.BAD_REQUEST:
        return [problem_of(heard)] * count
    answer = msgspec.json.decode(heard.body, type=ProduceAnswer)
    return [_outcome(result) for result in answer.results]


def _outcome(result: PartitionProduceResult) -> Outcome:
    if isinstance(result.problem, dict):
        return ProblemError.from_document(result.problem)  # type: ignore[arg-type]
    document = msgspec.structs.asdict(result)
    if document["log_append_time"] is msgspec.UNSET:
        return UNKNOWN_PLACE
    return AppendResult(
        Offset(document["base_offset"]),
        Offset(document["last_offset"]),
        TimestampUs(parse_timestamp_us(document["log_append_time"], "log_append_time")),
        LeaderEpoch(document["leader_epoch"]),
        duplicate=document["duplicate"] is True,
    )


ON_LOOP_BYTES_MAX: Final = 128 << 10
"""Maximum number of bytes of a body whose digest is computed on the event loop; 1 MiB would block the loop for a
millisecond."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_KEY: Final = Header.IDEMPOTENCY_KEY.lower().encode()
_PRODUCER: Final = (
    (Header.PRODUCER_ID, _INT64_MAX),
    (Header.PRODUCER_EPOCH, _INT32_MAX),
    (Header.BASE_SEQUENCE, _INT32_MAX),
)
PRODUCER_HEADER_NAMES: Final = tuple(header.lower().encode() for header, _ in _PRODUCER)


def producer_stamp(call: Call) -> ProducerStamp | None:
    """Return the idempotent producer of a JSON or Arrow request, if any. Raises ProblemError malformed_request."""
    given = [name for name in PRODUCER_HEADER_NAMES if name in call.headers]
    if not given:
        return None
    if len(given) < len(PRODUCER_HEADER_NAMES):
        missing = next(header for header, _ in _PRODUCER if header.lower().encode() not in call.headers)
        _refuse(
            missing,
            "",
            "the headers Fairlead-Producer-Id, -Producer-Epoch and -Base-Sequence must be sent together",
        )
    producer_id, epoch, sequence = (_number(call, header, maximum) for header, maximum in _PRODUCER)
    return ProducerStamp(producer_id, epoch, sequence)


async def keyed_request(call: Call, media_type: str, body: bytes) -> KeyedRequest | None:
    """Return the idempotency key and digest of a JSON or Arrow request, or None if there is no key.

    Two requests are the same if their type, encoding and body are equal byte for byte. The encoded batches
    cannot be compared, because they depend on the time of the request. Raises ProblemError malformed_request.
    """
    key = call.headers.get(_KEY)
    if key is None:
        return None
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_BYTES_MAX or not all(0x20 < byte < 0x7F for byte in key):
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            f"1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters",
        )
    if any(name in call.headers for name in PRODUCER_HEADER_NAMES):
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            "a request names a producer or has an idempotency key, not both",
        )
    salt = f"{media_type}\0{call.query.text('encoding')}\0".encode() + _event_attributes(call)
    if media_type == BINARY_EVENT:
        # For a binary-mode event, the Content-Type header contains an attribute of the event (datacontenttype).
        salt += call.headers.get(b"content-type", b"") + b"\0"
    if len(body) <= ON_LOOP_BYTES_MAX:
        return KeyedRequest(key, _digest(salt, body))
    return KeyedRequest(key, await asyncio.to_thread(_digest, salt, body))


def passed_on_key(call: Call, digest_header: str) -> KeyedRequest | None:
    """Return the idempotency key and digest that a peer sends with encoded batches.

    Raises ProblemError malformed_request.
    """
    key = call.headers.get(_KEY)
    if key is None:
        return None
    text = call.header_text(digest_header.encode())
    try:
        return KeyedRequest(key, bytes.fromhex(text))
    except ValueError:
        _refuse(digest_header, text, "hexadecimal digits")


def refuse_producer_headers(call: Call, reason: str) -> None:
    """Raise ProblemError malformed_request if a request that does not support producer headers has such a header."""
    for header, _ in _PRODUCER:
        if header.lower().encode() in call.headers:
            _refuse(header, call.header_text(header.lower().encode()), reason)


def refuse_idempotency_key(call: Call) -> None:
    """Raise ProblemError malformed_request if a request that does not support an idempotency key has one."""
    if _KEY in call.headers:
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            "it is for JSON and Arrow bodies; a record batch contains producer id, epoch and base sequence",
        )


def _event_attributes(call: Call) -> bytes:
    """Return the attributes of a CloudEvent in binary mode; the attributes are part of the request's content."""
    return b"".join(
        b"%s: %s\0" % attribute
        for attribute in sorted(call.headers.items())
        if attribute[0].startswith(HEADER_PREFIX.encode())
    )


def _digest(salt: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(salt, digest_size=REQUEST_DIGEST_BYTES)
    digest.update(body)
    return digest.digest()


def _number(call: Call, header: str, maximum: int) -> int:
    text = call.header_text(header.lower().encode())
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        _refuse(header, text, f"a number from 0 to {maximum}")
    return int(text)


def _refuse(header: str, value: str, allowed: str) -> NoReturn:
    raise ProblemError(
        "malformed_request",
        f"header {header} {shown(value)} is not allowed here; allowed: {allowed}",
        data={"parameter": str(header), "value": value[:80], "allowed": allowed},
    )
