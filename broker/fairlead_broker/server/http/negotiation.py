"""Which form a body has and which form its answer takes: Content-Type and Accept.

Callers: the families of calls that speak more than one media type. Must not know what the types mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead_api.bodies.media_types import (
    CLOUD_EVENT,
    CLOUD_EVENTS,
    FRAMES_ESSENCE,
    FRAMES_VERSION,
    JSON,
    essence,
)
from fairlead_api.excerpts import shown
from fairlead_api.problems import ProblemError
from fairlead_broker.server.http.call import Call

ACCEPT_LENGTH_MAX = 1000
BINARY_EVENT = "a CloudEvent in binary mode"
"""In place of a media type: the body may have any."""
EVENT_VERSION = b"ce-specversion"
STRUCTURED_EVENTS = (CLOUD_EVENT, CLOUD_EVENTS)


def body_type(call: Call) -> str:
    """The media type of the body, one of the route's; JSON where none is said and JSON is supported.

    Raises ProblemError unsupported_media_type listing the supported ones, unsupported_version for other frames.
    """
    supported = call.matched_route.body_types
    given = call.header_text(b"content-type")
    if given in supported:
        return given
    if not given and JSON in supported:
        return JSON
    wanted = essence(given)
    for media_type in supported:
        if essence(media_type) == wanted:
            if wanted == FRAMES_ESSENCE:
                _check_frames_version(given)
            return media_type
    raise ProblemError(
        "unsupported_media_type",
        f"a body of type {shown(given) if given else 'none'} is not understood here; supported:"
        f" {', '.join(supported)}",
        data={"supported": list(supported)},
    )


def record_body_type(call: Call) -> str:
    """As ``body_type``, for calls that take records; BINARY_EVENT where the headers make the body an event's data."""
    if EVENT_VERSION in call.headers and essence(call.header_text(b"content-type")) not in STRUCTURED_EVENTS:
        return BINARY_EVENT
    return body_type(call)


def answer_type(call: Call) -> str:
    """The media type of the route's that the caller likes most, the first one where it does not care.

    Raises ProblemError not_acceptable listing the supported ones.
    """
    supported = call.matched_route.answer_types
    accept = call.header_text(b"accept")
    if not accept or accept == "*/*":
        return supported[0]
    if accept in supported:
        return accept
    # A list may come in several headers of the name (RFC 9110, 5.3).
    accept = ",".join(value.decode("latin-1") for name, value in call.scope["headers"] if name == b"accept")
    best, best_weight = "", 0.0
    ranges = [_media_range(part) for part in accept[:ACCEPT_LENGTH_MAX].split(",")]
    for media_type in supported:
        weight = _weight(essence(media_type), ranges)
        if weight > best_weight:
            best, best_weight = media_type, weight
    if best:
        return best
    raise ProblemError(
        "not_acceptable",
        f"accept {shown(accept)} names nothing that this call answers; supported: {', '.join(supported)}",
        data={"supported": list(supported)},
    )


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = part.split(";")
    weight = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                weight = min(max(float(value), 0.0), 1.0)
            except ValueError:
                weight = 0.0
    return name.strip().lower(), weight


def _weight(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The weight of the most specific range that covers the type (RFC 9110, 12.5.1)."""
    main = media_type.partition("/")[0]
    for covering in (media_type, f"{main}/*", "*/*"):
        weights = [weight for name, weight in ranges if name == covering]
        if weights:
            return max(weights)
    return 0.0


def _check_frames_version(given: str) -> None:
    for parameter in given.split(";")[1:]:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "v" and value.strip().strip('"') != str(FRAMES_VERSION):
            raise ProblemError(
                "unsupported_version",
                f"frames of version {shown(value)} are not understood; supported: {FRAMES_VERSION}",
                data={"value": value[:80], "supported": [FRAMES_VERSION]},
            )


# The longest honest one sets every configuration key of a topic: some KiB.
ADMIN_BYTES_MAX = 1 << 20


async def json_body(call: Call) -> bytes:
    """The body. Raises unsupported_media_type for anything that does not claim to be JSON, body_too_large."""
    body_type(call)
    return await call.body(ADMIN_BYTES_MAX)
