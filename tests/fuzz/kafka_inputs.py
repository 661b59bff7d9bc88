"""Bytes of Kafka's requests with values in every field, in every version that is served, and mutations of these bytes.

`kafka_request_mutations.py` decodes the mutated requests, and `kafka_wire_mutations.py` sends them to a broker.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kafka.record.default_records import DefaultRecordBatchBuilder

from fairlead_broker.kafka.protocol.apis import APIS, Api
from fairlead_broker.kafka.protocol.messages import MESSAGES, is_flexible
from kafka_messages import INTEGERS, Values, fields_of, message_of, versions

WORDS: Final = (
    *(struct.pack(">i", each) for each in (-1, -2, 0, 1, 2**31 - 1, -(2**31))),
    *(struct.pack(">h", each) for each in (-1, 0, 2**15 - 1)),
    b"\x00",
    b"\x01",
    b"\x02",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 40,
    bytes(64),
    b"\x01" * 200,
)
SERVED: Final = tuple((api, version) for api in APIS.values() for version in range(api.first, api.last + 1))
"""Every served API with each of its versions."""
CODECS: Final = (0, 1)
"""Codecs of produced batches: none and gzip."""
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")
_CLIENT_ID: Final = b"fuzz"


@dataclass(frozen=True, slots=True)
class Known:
    """Names and ids that requests contain, in addition to random ones."""

    names: tuple[str, ...] = ()
    topic_ids: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Requests:
    """Source of requests."""

    chance: random.Random
    known: Known = Known()

    def body(self, api: Api, version: int) -> bytes:
        """Return a request of a version, without its header."""
        kind = MESSAGES[api.key][0]
        return bytes(message_of(kind, version, self._values(kind.json, version)).encode(version=version))

    def _values(self, structure: Mapping[str, Any], version: int) -> Values:
        return {field["name"]: self._value(field, version) for field in fields_of(structure, version)}

    def _value(self, field: Mapping[str, Any], version: int) -> Any:
        kind, chance = field["type"], self.chance
        if version in versions(field.get("nullableVersions")) and not chance.randrange(4):
            return None
        if kind.startswith("[]"):
            inner = {**field, "type": kind[2:], "nullableVersions": "none"}
            return [self._value(inner, version) for _ in range(chance.choice((0, 1, 1, 2, 5)))]
        if "fields" in field:
            return self._values(field, version)
        if kind in INTEGERS:
            return chance.choice((0, 0, 1, 2, 4, -1, 2 ** (INTEGERS[kind] - 1) - 1))
        return self._simple(kind)

    def _simple(self, kind: str) -> Any:
        chance = self.chance
        match kind:
            case "string":
                return chance.choice(("", "name", "name" * 9, *self.known.names))
            case "uuid":
                return chance.choice((UUID(int=chance.getrandbits(128)), *self.known.topic_ids))
            case "records":
                return chance.randbytes(90) if not chance.randrange(3) else self._batch()
            case "bytes":
                return chance.randbytes(9)
            case _:
                return {"bool": bool(chance.randrange(2)), "float64": 0.5, "uint16": 7}[kind]

    def _batch(self) -> bytes:
        """Return a record batch in Kafka's format 2."""
        chance = self.chance
        builder = DefaultRecordBatchBuilder(2, chance.choice(CODECS), False, -1, -1, -1, 1 << 20)
        for offset in range(chance.choice((1, 1, 3, 20))):
            builder.append(offset, 1_700_000_000_000 + offset, b"key", chance.randbytes(40), [("name", b"v")])
        return bytes(builder.build())


def mutated(body: bytes, chance: random.Random) -> bytes:
    """Change, insert, repeat or remove bytes at one to four places."""
    mutant = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, word = chance.randrange(len(mutant) + 1), chance.choice(WORDS)
        match chance.randrange(5):
            case 0 if at < len(mutant):
                mutant[at] ^= 1 << chance.randrange(8)
            case 1:
                mutant[at : at + len(word)] = word
            case 2:
                mutant[at:at] = word
            case 3:
                mutant[at:at] = mutant[at : at + chance.choice((4, 40))] * chance.choice((1, 3, 300))
            case _:
                del mutant[at : at + chance.choice((1, 4, 9))]
    return bytes(mutant)


def framed(api: Api, version: int, body: bytes, correlation_id: int) -> bytes:
    """Return a request with its size and header."""
    header = _HEADER.pack(api.key, version, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
    if is_flexible(api, version):
        header += b"\0"
    return _SIZE.pack(len(header) + len(body)) + header + body
