"""Heads of HTTP/1.1 requests that are too long or ambiguous about their body."""

import pytest
import pytest_asyncio

TOPIC = "heads"
RECORDS = f"/v1/topics/{TOPIC}/partitions/0/records"
BODY = b'[{"value": "a"}]'
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
HEADER_BYTES_MAX = 32 << 10

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def topic(shared) -> str:
    """Return the name of a topic without records."""
    await shared.api.create(TOPIC)
    return TOPIC


def head(method: str, target: str, headers: str = "") -> bytes:
    """Return the head of a request that closes its connection; each header includes its line end."""
    return f"{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n".encode()


@pytest.mark.parametrize(
    "codings",
    [
        ["gzip, chunked"],
        ["gzip", "chunked"],
        ["identity, chunked"],
        ["fairlead,chunked"],
        ["chunked, chunked"],
        ["chunked", "chunked"],
    ],
    ids=", then ".join,
)
async def test_a_body_in_another_coding_is_not_taken_for_records(
    shared, topic: str, codings: list[str]
) -> None:
    """A request with a second transfer coding is refused, because its body stays compressed (RFC 9112, 6.1)."""
    lines = "".join(f"transfer-encoding: {coding}\r\n" for coding in codings)
    answer = await shared.raw.send(
        head("POST", RECORDS, f"content-type: application/json\r\n{lines}") + CHUNKS
    )

    assert (answer.status, answer.code) == (400, "malformed_request")
    assert (answer.json["parameter"], answer.json["allowed"]) == ("Transfer-Encoding", "chunked")
    assert await shared.api.end_offset(topic) == 0


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " , chunked"])
async def test_a_chunked_body_is_read(shared, topic: str, coding: str) -> None:
    """The coding `chunked` is accepted in any letter case, and in a list with empty elements."""
    lines = f"content-type: application/json\r\ntransfer-encoding: {coding}\r\n"
    answer = await shared.raw.send(head("POST", RECORDS, lines) + CHUNKS.replace(b"value", b"color"))

    assert answer.code == "unknown_option"
    assert "color" in answer.json["detail"]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", f"x-long: {'a' * HEADER_BYTES_MAX}\r\n"),
        ("?" + "a" * HEADER_BYTES_MAX, ""),
        ("", "".join(f"x-{number}: {'a' * 400}\r\n" for number in range(80))),
    ],
    ids=["one header", "query", "many headers"],
)
async def test_a_head_that_is_too_long(shared, query: str, headers: str) -> None:
    """The broker refuses a request with a long head over HTTP/1.1, because its HTTP server would accept the request."""
    answer = await shared.raw.send(head("GET", f"/v1/topics{query}", headers))

    assert (answer.status, answer.code) == (431, "headers_too_large")
    assert answer.json["limit_bytes"] == HEADER_BYTES_MAX


@pytest.mark.parametrize(("filler", "status"), [(32_000, 200), (33_000, 431)])
async def test_heads_may_be_as_long_over_both_versions(shared, filler: int, status: int) -> None:
    """The maximum length of a request's head is the same over both versions of HTTP."""
    long = "a" * filler
    answers = [
        await shared.api.get("/v1/topics", x_long=long),
        await shared.raw.send(head("GET", "/v1/topics", f"x-long: {long}\r\n")),
    ]

    assert [answer.status for answer in answers] == [status] * 2


@pytest.mark.parametrize(
    ("lines", "parameter"),
    [
        ("", "Host"),
        ("host: localhost\r\nhost: localhost\r\n", "Host"),
        ("host:\r\nhost: localhost\r\n", "Host"),
        ("host: localhost\r\nhost:\r\n", "Host"),
        ("host:\r\n", "Host"),
        ("host: localhost\r\nexpect: 200-ok\r\n", "Expect"),
    ],
    ids=["no host", "two hosts", "empty first", "empty last", "empty host", "another expectation"],
)
async def test_a_head_that_http_does_not_allow(shared, lines: str, parameter: str) -> None:
    """A request with two hosts or an unknown expectation is refused (RFC 9112, 3.2; RFC 9110, 10.1.1)."""
    answer = await shared.raw.send(f"GET /v1/versions HTTP/1.1\r\nconnection: close\r\n{lines}\r\n".encode())

    assert (answer.status, answer.code) == (400, "malformed_request")
    assert answer.json["parameter"] == parameter
