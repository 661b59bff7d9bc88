"""The library's messages, compared with a second library that was generated independently from Kafka's definitions."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fairlead_broker.kafka.protocol.apis import APIS, Api
from fairlead_broker.kafka.protocol.messages import MESSAGES
from kafka_messages import filled, message_of, values_of

KINDS = pytest.mark.parametrize("kind", ["request", "response"])
SERVED = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


def second_library(api: Api, version: int, kind: str) -> tuple[Any, Any]:
    """Return the reader and the writer of the second library."""
    load = load_request_schema if kind == "request" else load_response_schema
    entity = load(api.key, version)
    return entity_reader(entity), entity_writer(entity)


@KINDS
@SERVED
def test_both_libraries_mean_the_same_bytes(api: Api, kind: str) -> None:
    """Filled messages have the same bytes in both libraries, and requests are decoded to their original values."""
    message = MESSAGES[api.key][kind == "response"]

    @settings(max_examples=30)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(api.first, api.last))
        values = data.draw(filled(message.json, version))
        written = bytes(message_of(message, version, values).encode(version=version))
        read, write = second_library(api, version, kind)
        entity, size = read(written, 0)
        rewritten = io.BytesIO()
        write(rewritten, entity)

        assert (size, rewritten.getvalue()) == (len(written), written)
        # The broker does not read responses.
        if kind == "request":
            assert values_of(message.decode(written, version=version), message.json, version) == values

    check()
