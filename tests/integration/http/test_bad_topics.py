"""Invalid topics: names, configuration and bodies that are refused and create nothing."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio

from fairlead_api.configuration import TOPIC_KEYS

pytestmark = pytest.mark.asyncio(loop_scope="module")

NASTY_NAMES = [
    "",
    ".",
    "..",
    "../etc/passwd",
    "..%2f..%2fetc",
    "a/b",
    "a\\b",
    "a b",
    "a%20b",
    "a\0b",
    "a\nb",
    "flüge",
    "フライト",
    "\u202egnp",
    "'; DROP TABLE topics; --",
    "<script>",
    "a" * 250,
    "a" * 5000,
    "$HOME",
    "{topic}",
    "*",
    "a:b",
]


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def no_topic_more(shared) -> AsyncIterator[None]:
    """Check that the topics are unchanged after each test."""
    before = (await shared.api.get("/v1/topics")).json["items"]
    yield
    after = (await shared.api.get("/v1/topics")).json["items"]

    assert after == before


@pytest.fixture
def api(shared):
    """Return a client over HTTP/2."""
    return shared.api


@pytest.fixture
def raw(shared):
    """Return raw access to the data listener."""
    return shared.raw


@pytest.mark.parametrize("name", NASTY_NAMES, ids=ascii)
async def test_nasty_names(api, raw, name: str) -> None:
    """Every request that names a topic with a forbidden name is refused, however the name is encoded."""
    encoded = quote(name, safe="")
    created = await api.post("/v1/topics", {"name": name})
    described = await raw.call("GET", f"/v1/topics/{encoded}")
    fetched = await raw.call("GET", f"/v1/topics/{encoded.replace('.', '%2e')}/partitions/0/records")
    produced = await raw.call("POST", f"/v1/topics/{encoded}/records", b'[{"value": "v"}]')

    assert (created.status, created.code) == (422, "invalid_topic_name")
    assert (described.status, described.code) == (422, "invalid_topic_name")
    assert (fetched.status, fetched.code) == (422, "invalid_topic_name")
    assert (produced.status, produced.code) == (422, "invalid_topic_name")


NOT_BUILT = [
    (key.name, value)
    for key in TOPIC_KEYS.values()
    for value in key.choices
    if value not in key.choices_supported
]


@pytest.mark.parametrize(("key", "value"), NOT_BUILT)
async def test_unsupported_configuration(api, key: str, value: str) -> None:
    """A topic setting that the broker does not support is refused and not stored."""
    answer = await api.post("/v1/topics", {"name": "flights", "config": {key: value}})

    assert (answer.status, answer.code) == (422, "invalid_config")
    assert answer.json["key"] == key


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed_request"),
        (b"{", "malformed_request"),
        (b"[]", "malformed_request"),
        (b"null", "malformed_request"),
        (b'{"name": 7}', "malformed_request"),
        (b'{"name": "x", "partitions": "three"}', "malformed_request"),
        (b'{"name": "x", "partitions": 0}', "malformed_request"),
        (b'{"name": "x", "partitions": -1}', "malformed_request"),
        (b'{"name": "x", "partitions": 1e99}', "malformed_request"),
        (b'{"name": "x", "partitions": 1000000}', "malformed_request"),
        (b'{"name": "x", "config": []}', "malformed_request"),
        (b'{"name": "x", "name": "y"}', "malformed_request"),
        (b'{"name": "x", "colour": "red"}', "unknown_option"),
        (b'{"partitions": 1}', "malformed_request"),
        (b'{"name": "x", "replication_factor": 2}', "invalid_config"),
        (b'{"name": "x", "config": {"no.such.key": 1}}', "invalid_config"),
        (b'{"name": "x", "config": {"segment.bytes": "many"}}', "invalid_config"),
        (b'{"name": "x", "config": {"segment.bytes": 1}}', "invalid_config"),
        (b"[" * 100_000, "malformed_request"),
        (b'{"name": "\xff"}', "malformed_request"),
        (b'{"name": "\\ud800"}', "malformed_request"),
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_wrong_bodies(api, body: bytes, code: str) -> None:
    """A topic body that is invalid is refused with the position of the mistake."""
    answer = await api.call("POST", "/v1/topics", body, {"content-type": "application/json"})

    assert answer.code == code
