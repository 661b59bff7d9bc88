"""Producing CloudEvents over HTTP in the three modes, to a topic and to one partition."""

import msgspec
import pytest

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.made", "partitionkey": "anna"}
STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}
BATCH = {"content-type": "application/cloudevents-batch+json"}
BINARY = {f"ce-{name}": text for name, text in EVENT.items()}


@pytest.mark.parametrize("path", ["/v1/topics/orders/records", "/v1/topics/orders/partitions/0/records"])
async def test_three_modes(api, path: str) -> None:
    """A record has the event's data, its attributes as headers and its partition key as key, in all three modes."""
    await api.create("orders", 1)
    structured = await api.call("POST", path, msgspec.json.encode({**EVENT, "data": {"n": 1}}), STRUCTURED)
    batch = await api.call(
        "POST", path, msgspec.json.encode([{**EVENT, "data": {"n": 2}}, {**EVENT, "data": {"n": 3}}]), BATCH
    )
    binary = await api.call("POST", path, b'{"n":4}', {**BINARY, "content-type": "application/json"})
    image = await api.call("POST", path, b"\x89PNG", {**BINARY, "content-type": "image/png"})
    records = (await api.get("/v1/topics/orders/partitions/0/records")).json["records"]

    assert [answer.status for answer in (structured, batch, binary, image)] == [200] * 4
    assert [record["value"] for record in records[:4]] == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}']
    assert records[4]["value"] == {"base64": "iVBORw=="}
    assert {record["key"] for record in records} == {"anna"}
    assert all(["ce_type", "order.made"] in record["headers"] for record in records)
    assert ["content-type", "image/png"] in records[4]["headers"]


async def test_invalid_events(api) -> None:
    """A request with an invalid event is refused, naming the attribute, and an empty batch stores no record."""
    await api.create("orders", 1)
    path = "/v1/topics/orders/records"
    missing = await api.call("POST", path, b'{"specversion":"1.0","id":"1","source":"/s"}', STRUCTURED)
    headless = await api.call("POST", path, b"x", {"ce-specversion": "1.0"})
    empty = await api.call("POST", path, b"[]", BATCH)

    assert (missing.status, missing.code, missing.json["parameter"]) == (422, "invalid_record", "type")
    assert (headless.status, headless.code) == (422, "invalid_record")
    assert (empty.status, empty.code) == (400, "malformed_request")
    assert await api.end_offset("orders") == 0


async def test_a_repeat_of_a_binary_event_is_known_by_its_attributes(api) -> None:
    """A request with the same idempotency key and body, but a different event id, is refused as a different request."""
    await api.create("orders", 1)
    path, keyed = "/v1/topics/orders/records", {**BINARY, "idempotency-key": "k"}
    first = await api.call("POST", path, b"x", keyed)
    again = await api.call("POST", path, b"x", keyed)
    other = await api.call("POST", path, b"x", {**keyed, "ce-id": "2"})
    of_other_type = await api.call("POST", path, b"x", {**keyed, "content-type": "text/plain"})

    assert (first.status, again.status) == (200, 200)
    assert again.json["results"][0]["duplicate"]
    assert other.code == of_other_type.code == "idempotency_key_reused"


async def test_attributes_are_the_same_through_any_broker(three) -> None:
    """A repeated request is recognised at another broker, because forwarding leaves its attributes unchanged."""
    await three.topic("orders", 1)
    path = "/v1/topics/orders/partitions/0/records"
    headers = {**BINARY, "ce-subject": "gr\u00f6\u00dfe", "idempotency-key": "k"}
    stored = [await three.at(broker).call("POST", path, b"x", headers) for broker in (1, 2, 3)]
    [record] = (await three.at(1).get(path)).json["records"]

    assert [answer.status for answer in stored] == [200] * 3
    assert ["ce_subject", "gr\u00f6\u00dfe"] in record["headers"]
