"""The producer or the idempotency key of a request, read from its headers."""

from __future__ import annotations

import pytest

from fairlead_api.batch.batches import ProducerStamp
from fairlead_api.routes import route
from fairlead_broker.server.http.asgi import Message
from fairlead_broker.server.http.body import BodyBudget, BodyLimits
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.request_target import ParsedQueries
from fairlead_broker.server.records.produce_head import (
    ON_LOOP_BYTES_MAX,
    keyed_request,
    producer_stamp,
    refuse_idempotency_key,
    refuse_producer_headers,
)
from refusals import refuses

PRODUCER = {
    "fairlead-producer-id": "7",
    "fairlead-producer-epoch": "3",
    "fairlead-base-sequence": "2147483647",
}
JSON = "application/json"


async def nothing(*_: object) -> Message:
    """Fail, because only the headers of the request are read."""
    raise AssertionError("the head is enough")


def call_of(headers: dict[str, str], query: bytes = b"") -> Call:
    """Return a produce call with the given headers."""
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"method": "POST", "headers": pairs, "query_string": query}
    call = Call(scope, nothing, nothing, BodyBudget(BodyLimits()))
    call.route = route("produce_partition")
    call.check_query(ParsedQueries())
    return call


def test_three_headers_make_a_producer() -> None:
    """Three headers identify a producer, and a request without these headers has no producer."""
    assert producer_stamp(call_of(PRODUCER)) == ProducerStamp(7, 3, 2**31 - 1)
    assert producer_stamp(call_of({})) is None


@pytest.mark.parametrize("missing", list(PRODUCER))
def test_all_three_or_none(missing: str) -> None:
    """An incomplete set of producer headers is refused, and the problem names the missing header."""
    headers = {name: value for name, value in PRODUCER.items() if name != missing}

    with refuses("malformed_request") as refused:
        producer_stamp(call_of(headers))

    assert str(refused.value.data["parameter"]).lower() == missing


@pytest.mark.parametrize("name", list(PRODUCER))
@pytest.mark.parametrize("value", ["", "-1", "x", "1.0", " 7", "9" * 30, str(2**63), "\u00b2"])
def test_numbers_within_their_range(name: str, value: str) -> None:
    """A producer header that is not an integer in its range, written in plain digits, is refused."""
    with refuses("malformed_request"):
        producer_stamp(call_of({**PRODUCER, name: value}))


async def test_the_same_request_has_the_same_digest() -> None:
    """The digest of a request depends on its type, encoding and body, for small and large bodies."""
    large = b"x" * (ON_LOOP_BYTES_MAX + 1)
    key = {"idempotency-key": "order-17"}

    async def digest(media_type: str, body: bytes, query: bytes = b"") -> bytes:
        found = await keyed_request(call_of(key, query), media_type, body)
        assert found is not None
        assert found.key == b"order-17"
        return found.digest

    digests = [
        await digest(JSON, b"a"),
        await digest(JSON, b"b"),
        await digest(JSON, b"a", b"encoding=base64"),
        await digest("application/vnd.apache.arrow.stream", b"a"),
        await digest(JSON, large),
        await digest(JSON, large + b"x"),
    ]

    assert len({*digests}) == 6
    assert {len(each) for each in digests} == {16}
    assert await digest(JSON, b"a") == digests[0]
    assert await digest(JSON, large) == digests[4]
    assert await keyed_request(call_of({}), JSON, b"a") is None


@pytest.mark.parametrize("key", ["", "k" * 65, "a b", "tab\t", "\u00fc"])
async def test_keys_are_visible_ascii(key: str) -> None:
    """An idempotency key has 1 to 64 visible ASCII characters."""
    with refuses("malformed_request", "Idempotency-Key"):
        await keyed_request(call_of({"idempotency-key": key}), JSON, b"")


async def test_a_key_or_a_producer() -> None:
    """A request with a key and a producer is refused."""
    with refuses("malformed_request"):
        await keyed_request(call_of({**PRODUCER, "idempotency-key": "k"}), JSON, b"")


@pytest.mark.parametrize("name", list(PRODUCER))
def test_headers_that_mean_nothing_are_refused(name: str) -> None:
    """Producer headers in a call for which they have no meaning are refused with the given reason."""
    with refuses("malformed_request"):
        refuse_producer_headers(call_of({name: "7"}), "because")

    refuse_producer_headers(call_of({}), "because")


def test_a_binary_body_has_no_key() -> None:
    """An idempotency key with a binary body is refused, because record batches name their producer themselves."""
    with refuses("malformed_request"):
        refuse_idempotency_key(call_of({"idempotency-key": "k"}))

    refuse_idempotency_key(call_of({}))
