"""Content-Type and Accept."""

import pytest

from fairlead_api.bodies.media_types import (
    ARROW_STREAM,
    BATCHES,
    CLOUD_EVENT,
    CLOUD_EVENTS,
    FRAMES,
    JSON,
    NDJSON,
)
from fairlead_api.problems import ProblemError
from fairlead_api.routes import route
from fairlead_broker.server.http.body import BodyBudget, BodyLimits
from fairlead_broker.server.http.call import (
    BINARY_EVENT,
    Call,
    answer_type,
    body_type,
    record_body_type,
)


def call_of(route_name: str, **headers: str) -> Call:
    """Return a request with the given headers to a route; the body and the answer of the request cannot be used."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def nothing(*_: object) -> None:
        raise AssertionError("headers are enough")

    call = Call({"headers": pairs}, nothing, nothing, BodyBudget(BodyLimits()))  # type: ignore[arg-type]
    call.route = route(route_name)
    return call


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (BATCHES, BATCHES),
        (ARROW_STREAM, ARROW_STREAM),
        ("Application/JSON; charset=utf-8", JSON),
    ],
)
def test_body_types(given: str, expected: str) -> None:
    """Case and parameters of a content type are ignored."""
    assert body_type(call_of("produce_partition", content_type=given)) == expected


@pytest.mark.parametrize(
    "given", ["", "text/plain", "application/x-www-form-urlencoded", "json", ";;;", FRAMES]
)
def test_other_body_types_list_the_supported_ones(given: str) -> None:
    """An unsupported or missing content type is refused, and the problem lists the supported types."""
    headers = {"content_type": given} if given else {}
    with pytest.raises(ProblemError) as refused:
        body_type(call_of("produce_partition", **headers))

    assert refused.value.code == "unsupported_media_type"
    assert refused.value.data["supported"] == [JSON, NDJSON, BATCHES, ARROW_STREAM, CLOUD_EVENT, CLOUD_EVENTS]


def test_headers_of_an_event_make_any_body_its_data() -> None:
    """A body with CloudEvents headers is the data of an event, unless the body is an event itself."""
    event = {"ce_specversion": "1.0"}

    assert record_body_type(call_of("produce_topic", content_type="image/png", **event)) == BINARY_EVENT
    assert record_body_type(call_of("produce_topic", **event)) == BINARY_EVENT
    assert record_body_type(call_of("produce_topic", content_type=CLOUD_EVENTS, **event)) == CLOUD_EVENTS
    assert record_body_type(call_of("produce_topic", content_type=JSON)) == JSON


def test_frames_of_another_version() -> None:
    """Frames of version 1 are accepted, and any other version is refused by a problem with the supported version."""
    accepted = body_type(call_of("produce", content_type='application/vnd.fairlead.frames; v="1"'))
    with pytest.raises(ProblemError) as refused:
        body_type(call_of("produce", content_type="application/vnd.fairlead.frames;v=2"))

    assert accepted == FRAMES
    assert refused.value.code == "unsupported_version"
    assert refused.value.data["supported"] == [1]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", JSON),
        ("*/*", JSON),
        (BATCHES, BATCHES),
        ("application/*", JSON),
        (f"{ARROW_STREAM};q=0.9, {JSON};q=0.1", ARROW_STREAM),
        (f"{JSON};q=0, */*;q=0.5", BATCHES),
        ("text/html, application/xhtml+xml, */*;q=0.8", JSON),
        (f"{BATCHES};q=nonsense, {ARROW_STREAM}", ARROW_STREAM),
    ],
)
def test_answer_types(accept: str, expected: str) -> None:
    """The accepted type with the highest weight is chosen, and among equal weights the first type of the route."""
    headers = {"accept": accept} if accept else {}

    assert answer_type(call_of("fetch_partition", **headers)) == expected


def test_accept_in_several_headers() -> None:
    """Several Accept headers form one list."""
    call = call_of("fetch_partition", accept=f"{ARROW_STREAM}, {JSON};q=0.5")
    call.scope["headers"].append((b"accept", b"text/html"))

    assert answer_type(call) == ARROW_STREAM


@pytest.mark.parametrize(
    "accept", ["text/html", f"{JSON};q=0", "application/xml, image/*", ",,,", "a" * 5000]
)
def test_nothing_acceptable_lists_the_supported_ones(accept: str) -> None:
    """A request that accepts no supported type is refused, and the problem lists the supported types."""
    with pytest.raises(ProblemError) as refused:
        answer_type(call_of("fetch_partition", accept=accept))

    assert refused.value.code == "not_acceptable"
    assert refused.value.data["supported"] == [JSON, BATCHES, ARROW_STREAM]
