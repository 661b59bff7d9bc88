"""Hostile and mistaken requests: each gets its problem, stores nothing, and does not stop the broker."""

import struct
from collections.abc import AsyncIterator, Callable

import msgspec
import pyarrow as pa
import pytest
import pytest_asyncio

from fairlead_api.batch.header import HEADER_BYTES, Codec, checksum
from fairlead_api.bodies.frames import encode_frame

RECORDS = "/v1/topics/flights/partitions/0/records"
BATCHES = "application/vnd.fairlead.batches"
FRAMES = "application/vnd.fairlead.frames;v=1"
JSON = {"content-type": "application/json"}
GHOST = "00000000-0000-4000-8000-000000000000"
YEAR_2999_US = 32_472_144_000_000_000


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def flights(shared) -> str:
    """Return the id of a topic with one record, b"there", in partition 0 and none in partition 1."""
    topic_id = await shared.api.create("flights", 2)
    await shared.api.post(RECORDS, [{"value": "there"}])
    return topic_id


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_stored(shared, flights: str) -> AsyncIterator[None]:
    """Check after each test that the topic is unchanged, no other topic exists, and the broker is alive."""
    yield
    listed = (await shared.api.get("/v1/topics")).json["items"]

    assert [topic["name"] for topic in listed] == ["flights"]
    assert [await shared.api.end_offset("flights", partition) for partition in (0, 1)] == [1, 0]


@pytest.fixture
def api(shared):
    """Return a client over HTTP/2."""
    return shared.api


@pytest.fixture
def raw(shared):
    """Return raw access to the data listener."""
    return shared.raw


def resealed(batch: bytes | bytearray) -> bytes:
    """Return a changed batch with a correct checksum, so that later checks are reached."""
    changed = bytearray(batch)
    struct.pack_into("<I", changed, 32, checksum(bytes(changed), 36, len(changed)))
    return bytes(changed)


def patched(at: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Return a function that overwrites a field of the header and computes the checksum again."""

    def change(batch: bytes) -> bytes:
        changed = bytearray(batch)
        struct.pack_into(form, changed, at, value)
        return resealed(changed)

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda batch: b"", "malformed_batch"),
        (lambda batch: b"\0", "malformed_batch"),
        (lambda batch: batch[:87], "malformed_batch"),
        (lambda batch: batch[:88], "malformed_batch"),
        (lambda batch: batch[:-8], "malformed_batch"),
        (lambda batch: batch + b"\0" * 8, "malformed_batch"),
        (lambda batch: batch + batch, "malformed_batch"),
        (lambda batch: bytes(len(batch)), "malformed_batch"),
        (lambda batch: b"\xff" * len(batch), "malformed_batch"),
        (lambda batch: batch[:200] + bytes([batch[200] ^ 1]) + batch[201:], "crc_mismatch"),
        (lambda batch: batch[:32] + b"\0\0\0\0" + batch[36:], "crc_mismatch"),
        (patched(8, "<I", 0), "malformed_batch"),
        (patched(8, "<I", 2**32 - 1), "malformed_batch"),
        (patched(36, "<B", 2), "unsupported_version"),
        (patched(37, "<B", 9), "unsupported_version"),
        (patched(37, "<B", 1), "malformed_batch"),
        (patched(38, "<H", 1), "malformed_batch"),
        (patched(38, "<H", 2), "malformed_batch"),
        (patched(38, "<H", 4), "malformed_batch"),
        (patched(38, "<H", 0x8000), "malformed_batch"),
        (patched(40, "<i", 7), "malformed_batch"),
        (patched(40, "<i", -1), "malformed_batch"),
        (patched(44, "<i", 0), "malformed_batch"),
        (patched(44, "<i", 2**31 - 1), "malformed_batch"),
        (patched(48, "<q", 0), "malformed_batch"),
        (patched(64, "<q", 7), "malformed_batch"),
        (patched(80, "<I", 1), "malformed_batch"),
        (patched(80, "<I", 2**31), "batch_too_large"),
        (patched(84, "<H", 1), "unsupported_version"),
        (patched(86, "<H", 8), "malformed_batch"),
        (patched(86, "<H", 65_528), "malformed_batch"),
        (patched(HEADER_BYTES, "<I", 0), "malformed_batch"),
        (patched(HEADER_BYTES + 4, "<I", 2**31), "malformed_batch"),
    ],
)
async def test_broken_batches(api, batch_of, change: Callable[[bytes], bytes], code: str) -> None:
    """A broken batch is refused for the first rule that it violates, both alone and in a frame."""
    batch = change(batch_of(b"a" * 200, b"b" * 100))
    answer = await api.post_batch(RECORDS, batch)

    assert answer.code == code, answer.json


async def test_bomb(api, batch_of) -> None:
    """A small batch that decompresses beyond the limit is refused because of its declared or its actual size."""
    honest = batch_of(bytes(65 << 20), codec=Codec.ZSTD)
    lying = patched(80, "<I", 1_000)(honest)
    answers = [await api.post_batch(RECORDS, batch) for batch in (honest, lying)]

    assert len(honest) < 100_000
    assert [answer.code for answer in answers] == ["batch_too_large", "malformed_batch"]


async def test_wrong_schema(api, batch_of) -> None:
    """A batch with invalid Arrow columns is refused even if its frame is correct."""
    good = batch_of(b"a")
    message = pa.record_batch({"value": [b"a"]}).serialize().to_pybytes()
    batch = bytearray(good[:HEADER_BYTES] + message + bytes(-len(message) % 8))
    struct.pack_into("<I", batch, 8, len(batch) - 12)
    struct.pack_into("<H", batch, 38, (-len(message) % 8) << 3)
    struct.pack_into("<I", batch, 80, len(message))
    answer = await api.post_batch(RECORDS, resealed(batch))

    assert answer.code == "malformed_batch"


async def test_timestamps_outside_the_window(api, batch_of) -> None:
    """Records with timestamps too far in the future are refused in every form of body."""
    binary = await api.post_batch(RECORDS, batch_of(b"a", timestamp_us=YEAR_2999_US))
    text = await api.post(RECORDS, [{"value": "a", "timestamp": "2999-01-01T00:00:00Z"}])
    easy = await api.post("/v1/topics/flights/records", [{"value": "a", "timestamp": YEAR_2999_US // 1000}])

    assert [answer.code for answer in (binary, text, easy)] == ["invalid_record"] * 3


async def test_too_large(api, raw, batch_of) -> None:
    """Batches above max.message.bytes are refused, and bodies above the read limit are refused unread."""
    batch = await api.post_batch(RECORDS, batch_of(bytes(9 << 20)))
    text = await api.post(RECORDS, [{"value": "a" * (1 << 20)}] * 9)
    record = await api.post(RECORDS, [{"value": "a" * (2 << 20)}])
    request = f"POST {RECORDS} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: {BATCHES}\r\ncontent-length: 9999999999\r\n\r\n"
    announced = await raw.send(request.encode())

    assert [answer.code for answer in (batch, text)] == ["batch_too_large"] * 2
    assert batch.json["limit_bytes"] == 8 << 20
    assert (record.code, record.json["limit_bytes"]) == ("body_too_large", 2 << 20)
    assert (announced.status, announced.code) == (413, "body_too_large")
    assert announced.headers["connection"] == "close"


async def test_endless_body(raw) -> None:
    """A request whose body has no length is read to the limit and no further."""
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    head = f"POST {RECORDS} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: {BATCHES}\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = await raw.send(head.encode() + chunk * 65)

    assert (answer.status, answer.code) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        ("content-length: 50", b'[{"value": "a"}]'),
        ("transfer-encoding: chunked", b'10\r\n[{"value": "a"}]\r\n'),
        ("transfer-encoding: chunked", b'7\r\n[{"value": "a"}]\r\n0\r\n\r\n'),
    ],
    ids=["short", "unfinished", "wrong chunk"],
)
async def test_a_body_that_ends_too_early(raw, framing: str, body: bytes) -> None:
    """A request with a truncated body is refused as the sender's mistake if the sender still listens."""
    head = (
        f"POST {RECORDS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
    )
    answer = await raw.send(head.encode() + body, ends=True)

    assert (answer.status, answer.code) == (400, "malformed_request")


async def test_lines_that_end_in_a_wrong_chunk(raw) -> None:
    """A body of lines with an invalid transfer coding ends with a problem, after the results of its stored lines."""
    head = f"POST {RECORDS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
    answer = await raw.send(f"{head}transfer-encoding: chunked\r\n\r\n".encode() + b"1\r\na\r\nx\r\n")

    assert answer.status == 200
    assert b'"code":"malformed_request"' in answer.body
    assert b'{"status":400,"records":0,"stored":0,"refused":0}' in answer.body


async def test_lying_content_lengths(raw, api) -> None:
    """A request's bytes after its declared body are read as the next request."""
    body = b'[{"value": "a"}]'
    head = f"POST {RECORDS}?acks=nonsense HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    longer = await raw.send(f"{head}connection: close\r\ncontent-length: 3\r\n\r\n".encode() + body)
    wrong = await raw.send(f"{head}content-length: many\r\n\r\n".encode() + body)

    assert longer.code == "malformed_request"
    assert wrong.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"7",
        b'"records"',
        b"{}",
        b'{"records": {}}',
        b'{"records": []}',
        b"[]",
        b"[7]",
        b"[{}]",
        b'[{"key": "k"}]',
        b'[{"value": 7}]',
        b'[{"value": "v", "key": ["k"]}]',
        b'[{"value": "v", "headers": {"a": "b"}}]',
        b'[{"value": "v", "headers": [["a"]]}]',
        b'[{"value": "v", "headers": [[1, "b"]]}]',
        b'[{"value": "v", "timestamp": "soon"}]',
        b'[{"value": "v", "timestamp": 1.5}]',
        b'[{"value": "v", "timestamp": 99999999999999999999}]',
        b'[{"value": "\xff"}]',
        b'[{"value": "\\ud800"}]',
        b"[" * 50_000,
        b'[{"value": ' + b"[" * 33 + b"]" * 33 + b"}]",
        b'[{"value": "v"}] x',
    ],
    ids=lambda body: ascii(body)[:40],
)
async def test_broken_json(api, body: bytes) -> None:
    """Both produce calls refuse a JSON body that is not a list of records as malformed."""
    answers = [await api.call("POST", path, body, JSON) for path in (RECORDS, "/v1/topics/flights/records")]

    assert [answer.code for answer in answers] == ["malformed_request"] * 2


@pytest.mark.parametrize(
    ("query", "record", "code"),
    [
        ("encoding=base64", {"value": "no base64!"}, "invalid_record"),
        ("", {"value": {"base64": "A"}}, "invalid_record"),
        ("", {"value": "v", "colour": "red"}, "unknown_option"),
        ("", {"value": {"base65": "AA=="}}, "unknown_option"),
    ],
)
async def test_records_that_cannot_be_stored(api, query: str, record: object, code: str) -> None:
    """A record that can be decoded but not stored is named in the refusal."""
    answer = await api.post(f"{RECORDS}?{query}", [{"value": "fine"}, record])

    assert answer.code == code


def frame(meta: object, data: bytes = b"") -> bytes:
    """Return one frame."""
    document = meta if isinstance(meta, bytes) else msgspec.json.encode(meta)
    return b"".join(bytes(part) for part in encode_frame(document, [data]))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed_request"),
        (b"\0" * 7, "malformed_request"),
        (b"\0" * 8, "malformed_request"),
        (struct.pack("<II", 2**31, 0), "malformed_request"),
        (struct.pack("<II", 8, 2**31) + b"{}      ", "malformed_request"),
        (struct.pack("<II", 8, 2**32 - 8) + b"{}      ", "malformed_request"),
        (struct.pack("<II", 3, 0) + b"{} ", "malformed_request"),
        (frame(b"not json"), "malformed_request"),
        (frame({}), "malformed_request"),
        (frame({"topic_id": "flights", "partition": 0}), "malformed_request"),
        (frame({"topic_id": GHOST, "partition": "0"}), "malformed_request"),
        (frame({"topic_id": GHOST, "partition": -1}), "malformed_request"),
        (frame({"topic_id": GHOST, "partition": 0, "colour": 1}), "unknown_option"),
        (frame({"topic_id": GHOST, "partition": 0}) * 2, "malformed_request"),
        (frame({"topic_id": GHOST, "partition": 0}) * 10_001, "malformed_request"),
        (frame({"topic_id": GHOST, "partition": 0})[:-1], "malformed_request"),
    ],
)
async def test_broken_frames(api, batch_of, flights: str, body: bytes, code: str) -> None:
    """A request with a frame of an incorrect length is refused as a whole, including correct frames before it."""
    good = frame({"topic_id": flights, "partition": 0}, batch_of(b"a"))
    answers = [
        await api.call("POST", "/v1/produce", before + body, {"content-type": FRAMES})
        for before in ((b"", good) if body else (b"",))
    ]

    assert {answer.code for answer in answers} == {code}


@pytest.mark.parametrize(
    ("method", "target", "code"),
    [
        ("GET", f"{RECORDS}?ofset=1", "unknown_option"),
        ("GET", f"{RECORDS}?Offset=1", "unknown_option"),
        ("GET", f"{RECORDS}?offset=1&offset=2", "malformed_request"),
        ("GET", f"{RECORDS}?offset=1&timestamp=2", "malformed_request"),
        ("GET", f"{RECORDS}?offset=soon", "malformed_request"),
        ("GET", f"{RECORDS}?offset=", "malformed_request"),
        ("GET", f"{RECORDS}?offset=1.5", "malformed_request"),
        ("GET", f"{RECORDS}?offset=99999999999999999999", "malformed_request"),
        ("GET", f"{RECORDS}?offset=0x10", "malformed_request"),
        ("GET", f"{RECORDS}?offset=%D9%A1", "malformed_request"),
        ("GET", f"{RECORDS}?timestamp=yesterday", "malformed_request"),
        ("GET", f"{RECORDS}?max_bytes=-1", "malformed_request"),
        ("GET", f"{RECORDS}?max_wait_ms=999999999", "malformed_request"),
        ("GET", f"{RECORDS}?min_bytes=many", "malformed_request"),
        ("GET", f"{RECORDS}?encoding=rot13", "malformed_request"),
        ("GET", f"{RECORDS}?isolation=snapshot", "malformed_request"),
        ("GET", f"{RECORDS}?%FF=1", "malformed_request"),
        ("GET", f"{RECORDS}?" + "&".join(f"a{n}=1" for n in range(100)), "malformed_request"),
        ("GET", f"{RECORDS}?offset=2", "offset_out_of_range"),
        ("GET", f"{RECORDS}?last_epoch=7&max_wait_ms=0", "unknown_leader_epoch"),
        ("GET", "/v1/topics/ghost/partitions/0/records", "topic_not_found"),
        ("GET", "/v1/topics/flights/partitions/2/records", "partition_not_found"),
        ("GET", "/v1/topics/flights/partitions/-1/records", "malformed_request"),
        ("GET", "/v1/topics/flights/partitions/x/records", "malformed_request"),
        ("GET", "/v1/topics/flights/partitions//records", "malformed_request"),
        ("GET", "/v1/topics/flights/partitions/99999999999/records", "malformed_request"),
        ("GET", "/v1/topics/flights/partitions/%D9%A1/records", "malformed_request"),
        ("GET", "/v1/topics/flights/partitions/0%2F/records", "malformed_request"),
        ("POST", f"{RECORDS}?acks=2", "malformed_request"),
        ("POST", f"{RECORDS}?acks=-1", "malformed_request"),
        ("POST", f"{RECORDS}?timeout_ms=-1", "malformed_request"),
        ("POST", f"{RECORDS}?timeout=5", "unknown_option"),
        ("POST", "/v1/topics?dry_run=yes", "malformed_request"),
        ("POST", "/v1/topics/ghost/records", "topic_not_found"),
        ("POST", "/v1/topics/flights/partitions/2/records", "partition_not_found"),
        ("GET", "/v1/topics?limit=0", "malformed_request"),
        ("GET", "/v1/versions?verbose=true", "unknown_option"),
        ("GET", "/v1/metadata?topics=", "invalid_topic_name"),
        ("GET", "/v1/metadata?topics=a,,b", "invalid_topic_name"),
        ("DELETE", "/v1/topics/flights?force=true", "unknown_option"),
    ],
    ids=lambda value: value[-60:],
)
async def test_wrong_parameters(raw, method: str, target: str, code: str) -> None:
    """A request with an invalid parameter, path or name is refused without effect, and its mistake is named."""
    answer = await raw.call(method, target, b'[{"value": "a"}]' if method == "POST" else b"")

    assert answer.code == code, answer.json


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"fairlead-producer-id": "7", "fairlead-producer-epoch": "0"}, "malformed_request"),
        (
            {"fairlead-producer-id": "7", "fairlead-producer-epoch": "0", "fairlead-base-sequence": "-1"},
            "malformed_request",
        ),
        (
            {
                "fairlead-producer-id": "7",
                "fairlead-producer-epoch": str(2**31),
                "fairlead-base-sequence": "0",
            },
            "malformed_request",
        ),
        ({"idempotency-key": ""}, "malformed_request"),
        ({"idempotency-key": "k" * 65}, "malformed_request"),
        ({"idempotency-key": "two words"}, "malformed_request"),
        (
            {
                "idempotency-key": "once",
                "fairlead-producer-id": "7",
                "fairlead-producer-epoch": "0",
                "fairlead-base-sequence": "0",
            },
            "malformed_request",
        ),
        ({"fairlead-topic-id": "flights"}, "malformed_request"),
        ({"fairlead-topic-id": GHOST}, "topic_recreated"),
        ({"fairlead-leader-epoch": "minus one"}, "malformed_request"),
        ({"fairlead-leader-epoch": "99"}, "unknown_leader_epoch"),
        ({"content-encoding": "gzip"}, "unsupported_media_type"),
        ({"content-type": "text/plain"}, "unsupported_media_type"),
        ({"content-type": FRAMES}, "unsupported_media_type"),
    ],
    ids=str,
)
async def test_wrong_headers(api, headers: dict[str, str], code: str) -> None:
    """A request with a header for an unsupported feature, a different topic or a different form is refused."""
    answer = await api.call("POST", RECORDS, b'[{"value": "a"}]', {**JSON, **headers})

    assert answer.code == code


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", RECORDS, b'[{"value": "a"}]'),
        ("POST", "/v1/topics", b'{"name": "untyped"}'),
        ("PATCH", "/v1/topics/flights", b'{"config": {"retention.ms": 1}}'),
    ],
)
async def test_a_body_without_a_type(api, method: str, path: str, body: bytes) -> None:
    """A body without a content type, which any web page can send, is refused and changes nothing."""
    before = await api.end_offset("flights")
    answer = await api.call(method, path, body)

    assert answer.code == "unsupported_media_type"
    assert await api.end_offset("flights") == before
    assert (await api.get("/v1/topics/untyped")).code == "topic_not_found"


@pytest.mark.parametrize("header", ["fairlead-producer-id", "idempotency-key"])
async def test_a_binary_body_carries_its_producer_itself(api, batch_of, header: str) -> None:
    """A request with producer headers and a binary body is refused, because the batch names its producer."""
    before = await api.end_offset("flights")
    answer = await api.post_batch(RECORDS, batch_of(b"a"), **{header: "7"})
    frames = await api.call("POST", "/v1/produce", b"", {"content-type": FRAMES, header: "7"})
    easy = await api.call(
        "POST", "/v1/topics/flights/records", b'[{"value": "a"}]', {**JSON, "fairlead-producer-id": "7"}
    )

    assert (answer.code, frames.code, easy.code) == ("malformed_request",) * 3
    assert await api.end_offset("flights") == before


@pytest.mark.parametrize("accept", ["text/html", "application/xml", FRAMES])
async def test_not_acceptable(api, accept: str) -> None:
    """A fetch in an unsupported form is refused with the supported forms."""
    answer = await api.get(RECORDS, accept=accept)

    assert (answer.status, answer.code) == (406, "not_acceptable")
    assert answer.json["supported"] == [
        "application/json", "application/vnd.fairlead.batches", "application/vnd.apache.arrow.stream",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"isolation": "dirty"}, "malformed_request"),
        ({"formats": [2]}, "unsupported_version"),
        ({"partitions": []}, "malformed_request"),
        ({"partitions": 7}, "malformed_request"),
        ({"max_wait_ms": -1}, "malformed_request"),
        ({"max_wait_ms": "long"}, "malformed_request"),
        ({"min_bytes": 2**40}, "malformed_request"),
        ({"colour": "red"}, "unknown_option"),
        ({"partitions": [{"topic_id": GHOST, "partition": 0}]}, "malformed_request"),
        ({"partitions": [{"topic_id": "ghost", "partition": 0, "offset": 0}]}, "malformed_request"),
        ({"partitions": [{"topic_id": GHOST, "partition": 0, "offset": -1}]}, "malformed_request"),
        ({"partitions": [{"topic_id": GHOST, "partition": 0, "offset": 2**63}]}, "malformed_request"),
    ],
    ids=str,
)
async def test_wrong_fetches(api, change: dict[str, object], code: str) -> None:
    """A fetch with an invalid part, or without partitions, is refused as a whole."""
    whole = {"max_wait_ms": 0, "partitions": [{"topic_id": GHOST, "partition": 0, "offset": 0}]}

    assert (await api.post("/v1/fetch", whole)).status == 200
    assert (await api.post("/v1/fetch", {**whole, **change})).code == code


@pytest.mark.parametrize("records", ["acls", "tokens", "quotas"])
async def test_a_removal_of_what_no_key_can_name(api, records: str) -> None:
    """ACLs, tokens and quotas with a name that is empty or too long for a key of the store are not found."""
    answers = [
        await api.call("DELETE", f"/v1/{records}/{name}?force=true") for name in ("", "a" * 300, "%00")
    ]

    assert [answer.status for answer in answers if answer.status not in (404, 422)] == []
    assert "internal" not in {answer.code for answer in answers}
