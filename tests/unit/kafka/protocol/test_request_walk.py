"""Limits of requests, tested with filled and hostile requests of every served API and version."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.kafka.protocol.apis import APIS, ApiKey
from fairlead_broker.kafka.protocol.messages import MESSAGES, UndecodableError, decode_request
from fairlead_broker.kafka.protocol.request_walk import (
    TAGGED_BYTES_MAX,
    TAGGED_FIELDS_MAX,
    RequestShape,
    UnboundedRequest,
)
from kafka_messages import filled, message_of

SERVED = [(api.key, version) for api in APIS.values() for version in range(api.first, api.last + 1)]
ELEMENTS_MAX = 1_000
ONE_TAG = b"\x01\x00\x00"
"""Tagged fields: a single field with tag 0 and no bytes."""


def shape(key: ApiKey, version: int) -> RequestShape:
    """Return the shape of a served request."""
    return RequestShape(MESSAGES[key][0].json, version)


@given(st.data())
def test_every_request_is_walked_to_its_end(data: st.DataObject) -> None:
    """A request with any values is accepted, and is refused if one or more bytes at its end are missing."""
    key, version = data.draw(st.sampled_from(SERVED))
    kind = MESSAGES[key][0]
    body = bytes(message_of(kind, version, data.draw(filled(kind.json, version))).encode(version=version))
    shape(key, version).check(body, ELEMENTS_MAX)
    missing = data.draw(st.integers(1, max(len(body), 1)))

    if body:
        with pytest.raises(UnboundedRequest):
            shape(key, version).check(body[:-missing], ELEMENTS_MAX)


@given(st.data())
def test_no_length_is_believed(data: st.DataObject) -> None:
    """If bytes of a request are replaced by the largest length, the request is refused without allocating memory."""
    key, version = data.draw(st.sampled_from(SERVED))
    kind = MESSAGES[key][0]
    body = bytes(message_of(kind, version, data.draw(filled(kind.json, version))).encode(version=version))
    at = data.draw(st.integers(0, max(len(body) - 4, 0)))
    length = data.draw(st.sampled_from([struct.pack(">i", 2**31 - 1), b"\xff\xff\xff\xff\x0f", b"\xff" * 6]))
    hostile = body[:at] + length + body[at + len(length) :]
    tracemalloc.start()
    try:
        decode_request(APIS[key], version, memoryview(hostile))
    except UndecodableError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert peak < 4 << 20


def test_elements_are_limited_together() -> None:
    """The elements of all arrays in a request are counted, whatever their type."""
    # Five topics without a leader epoch, each with an array of ten numbers.
    partitions = struct.pack(">i", 10) + bytes(40)
    body = struct.pack(">h", 0) + struct.pack(">i", 5) + (struct.pack(">h", 0) + partitions) * 5
    definition = {
        "flexibleVersions": "none",
        "fields": [
            {"name": "group", "type": "string", "versions": "0+"},
            {
                "name": "topics",
                "type": "[]Topic",
                "versions": "0+",
                "fields": [
                    {"name": "name", "type": "string", "versions": "0+"},
                    {"name": "partitions", "type": "[]int32", "versions": "0+"},
                ],
            },
        ],
    }

    RequestShape(definition, 0).check(body, 55)
    with pytest.raises(UnboundedRequest):
        RequestShape(definition, 0).check(body, 54)


@pytest.mark.parametrize(
    "tags",
    [
        bytes((TAGGED_FIELDS_MAX + 1, 0, 0)),
        bytes((2, 1, 0, 1, 0)),
        bytes((2, 1, 0, 0, 0)),
        bytes((1, 0, 1, 0)),
        bytes((1, 1, 5)),
        b"\xff\xff\xff\xff\xff\x0f",
    ],
    ids=["too many", "repeated", "descending", "known, too short", "truncated", "no number"],
)
def test_malformed_tagged_fields_are_refused(tags: bytes) -> None:
    """Tagged fields must be few, in ascending order, and of the size that they declare."""
    definition = {
        "flexibleVersions": "0+",
        "fields": [{"name": "id", "type": "int32", "versions": "0+", "tag": 0, "taggedVersions": "0+"}],
    }

    RequestShape(definition, 0).check(bytes((2, 0, 4, 1, 2, 3, 4, 7, 0)), ELEMENTS_MAX)
    with pytest.raises(UnboundedRequest):
        RequestShape(definition, 0).check(tags, ELEMENTS_MAX)


def test_tagged_fields_in_a_large_request_are_limited() -> None:
    """Structures with tagged fields are limited, because the library copies the rest of the request for each one."""
    definition = {
        "flexibleVersions": "0+",
        "fields": [
            {
                "name": "topics",
                "type": "[]Topic",
                "versions": "0+",
                "fields": [{"name": "id", "type": "int8", "versions": "0+"}],
            },
            {"name": "data", "type": "bytes", "versions": "0+"},
        ],
    }
    rest = 1 << 20
    length = bytes((0x81 + rest % 128 - 0, 0x80 | rest >> 7 & 0x7F, rest >> 14))

    def body(topics: int) -> bytes:
        return bytes((topics + 1,)) + (b"\x00" + ONE_TAG) * topics + length + bytes(rest) + b"\x00"

    RequestShape(definition, 0).check(body((TAGGED_BYTES_MAX >> 20) - 1), ELEMENTS_MAX)
    with pytest.raises(UnboundedRequest):
        RequestShape(definition, 0).check(body(TAGGED_BYTES_MAX >> 20), ELEMENTS_MAX)


def test_null_is_refused_where_it_is_not_allowed() -> None:
    """A null array or text is accepted only where Kafka's definition allows null."""
    metadata = MESSAGES[ApiKey.METADATA][0].json
    null = struct.pack(">i", -1)

    RequestShape(metadata, 1).check(null, ELEMENTS_MAX)
    for refused in (null, struct.pack(">i", -2)):
        with pytest.raises(UnboundedRequest):
            RequestShape(metadata, 0).check(refused, ELEMENTS_MAX)


def test_a_structure_is_present_or_null() -> None:
    """A structure that may be null begins with 1 or -1; any other byte is refused."""
    api = APIS[ApiKey.DESCRIBE_TOPIC_PARTITIONS]
    request = bytes.fromhex("0301000672616e676500000000010000616e6765000000040000")

    with pytest.raises(UndecodableError):
        decode_request(api, 0, memoryview(request))
