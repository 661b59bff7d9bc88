"""Mutates whole requests and checks that a broker gives a valid answer to each.

`python request_mutations.py --mutants 20000 --seed 1` starts a broker in this process and passes mutated requests to
the application of its data listener, without the HTTP server, whose parser belongs to a library. The program prints a
JSON report and exits with 1 when a request gets a failure (500), no answer or a problem outside the catalogue, or when
earlier records cannot be read back. Batches in the requests are mutated as in `batch_mutations.py`, and nine of ten
have a valid checksum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from batch_mutations import Mutations
from fairlead_api.batch.batches import decode_records, encode
from fairlead_api.batch.columns import record_batch
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.bodies.media_types import ARROW_STREAM, CLOUD_EVENT, CLOUD_EVENTS, NDJSON
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.problems import CATALOGUE
from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.clock import SystemClock
from fairlead_broker.server.http.application import Application, HostCheck
from fairlead_broker.server.http.problem_handler import FailureLog
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.settings import BrokerSettings, Limits
from fairlead_broker.telemetry import Telemetry, set_up_logging
from fairlead_broker.wiring.broker import open_broker
from fairlead_broker.wiring.endpoints import build_endpoints

TOPIC: Final = "mutated"
GROUP: Final = "/v1/groups/mutated"
CONTROL: Final = "control"
CONTROL_EVERY: Final = 1000
FRAMES: Final = "application/vnd.fairlead.frames;v=1"
BATCHES: Final = "application/vnd.fairlead.batches"
JSON: Final = "application/json"
TOKENS: Final = (
    b"null", b"true", b"-1", b"0", b"1e999", b"9223372036854775808", b'"\\ud800"', b"[]", b"{}", b'""', b"[" * 40,
    b'"\xff"', b'"a"', b'"latest"', b'"../.."', b"0.5", b'"2020-01-01T00:00:00Z"',
)  # fmt: skip
WORDS: Final = (
    "-1",
    "all",
    "0",
    "latest",
    "",
    "9" * 30,
    "%00",
    "%2F..",
    "\u00e9",
    "1e3",
    "a" * 300,
    "nan",
    "null",
)


@dataclass(frozen=True)
class Request:
    """A request, split into the parts that mutations change."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    media_type: str | None = None
    accept: str | None = None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def originals(topic_id: str, batch: bytes) -> list[Request]:
    """Return valid requests of every kind whose bodies or parameters a broker parses."""
    at = f"/v1/topics/{TOPIC}/partitions/0"
    place = json.dumps({"topic_id": topic_id, "partition": 0}).encode()
    frames = b"".join(bytes(part) for part in (*encode_frame(place, [batch]), *encode_frame(place, [batch])))
    record = {"key": "k", "value": "v", "headers": [["a", "b"]], "timestamp": 1_700_000_000_000}
    records = json.dumps({"records": [record, {"value": None}]}).encode()
    wanted = {"topic_id": topic_id, "partition": 0, "offset": 0, "max_bytes": 1000}
    fetch = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 16, "partitions": [wanted]}
    lookup = {"partitions": [{"topic": TOPIC, "partition": 0, "timestamp": "earliest"}]}
    topic = {"name": "other", "partitions": 2, "replication_factor": 1, "config": {"retention.ms": "1000"}}
    producer = (
        ("fairlead-producer-id", "7"),
        ("fairlead-producer-epoch", "0"),
        ("fairlead-base-sequence", "0"),
    )
    return [
        Request("POST", "/v1/produce", (("acks", "all"),), FRAMES, None, frames),
        Request("POST", f"{at}/records", (("acks", "1"),), BATCHES, None, batch),
        Request("POST", f"{at}/records", (("encoding", "utf8"),), JSON, None, records, producer),
        Request(
            "POST", f"/v1/topics/{TOPIC}/records", (), JSON, None, records, (("idempotency-key", "one"),)
        ),
        Request("GET", f"{at}/records", (("offset", "0"), ("max_wait_ms", "0")), None, JSON),
        Request("GET", f"{at}/records", (("offset", "-1"), ("max_bytes", "100")), None, BATCHES),
        Request("GET", f"{at}/offsets", (("timestamp", "2020-01-01T00:00:00Z"),)),
        Request("POST", "/v1/fetch", (), JSON, FRAMES, json.dumps(fetch).encode()),
        Request("POST", "/v1/offsets:lookup", (), JSON, None, json.dumps(lookup).encode()),
        Request("POST", "/v1/topics", (("dry_run", "true"),), JSON, None, json.dumps(topic).encode()),
        Request("POST", f"{at}:delete-records", (), JSON, None, b'{"offset": 0}'),
        Request("POST", "/v1/producers", (), JSON, None, b'{"name": "loader"}'),
        Request("PATCH", f"/v1/topics/{TOPIC}", (), JSON, None, b'{"config": {"segment.ms": "60000"}}'),
        Request("GET", "/v1/metadata", (("topics", f"{TOPIC},{CONTROL}"),)),
    ]


def originals_of_formats() -> list[Request]:
    """Return valid requests with records in every format, and valid requests for groups."""
    at = f"/v1/topics/{TOPIC}/partitions/0/records"
    sink = pa.BufferOutputStream()
    columns = record_batch([b"v", None], keys=[b"k", b"k"], default_timestamp_us=1_700_000_000_000_000)
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    event = {"specversion": "1.0", "id": "1", "source": "/a", "type": "b", "data": {"c": [1, "d"]}}
    member = {"topics": [TOPIC], "session_timeout_ms": 45_000, "member_epoch": 0, "owned": []}
    offset = {"topic": TOPIC, "partition": 0, "offset": 0, "metadata": "a"}
    lines = b'{"key": "k", "value": "v"}\n{"value": {"a": [1, 2.5, null]}}\n'
    return [
        Request("POST", at, (), ARROW_STREAM, None, sink.getvalue().to_pybytes()),
        Request("POST", at, (("encoding", "json"),), NDJSON, None, lines),
        Request("POST", at, (), CLOUD_EVENT, None, json.dumps(event).encode()),
        Request("POST", at, (), CLOUD_EVENTS, None, json.dumps([event, event]).encode()),
        Request("GET", at, (("offset", "0"), ("max_wait_ms", "0")), None, ARROW_STREAM),
        Request("PUT", f"{GROUP}/members/one", (), JSON, None, json.dumps(member).encode()),
        Request("PUT", f"{GROUP}/offsets", (), JSON, None, json.dumps({"offsets": [offset]}).encode()),
        Request("GET", f"{GROUP}/offsets", (("topics", TOPIC),)),
        Request("GET", f"{GROUP}/lag"),
        Request("POST", f"{GROUP}/offsets:reset", (), JSON, None, b'{"to": "earliest", "topics": ["mutated"]}'),
        Request("GET", "/v1/topics", (("limit", "3"),)),
        Request("GET", "/v1/cluster/config"),
        Request("GET", "/v1/reassignments"),
        *(
            Request("GET", at, (("offset", "0"), ("max_wait_ms", "0"), ("encoding", encoding)), None, JSON)
            for encoding in ("json", "base64", "utf8")
        ),
        *security_originals(),
    ]  # fmt: skip


def security_originals() -> list[Request]:
    """Return valid requests for tokens, ACLs and quotas."""
    token = {"principal": "user:ann", "expires_in_seconds": 60, "note": "a", "owner": "fuzz"}
    acl = {
        "effect": "allow", "principal": "user:ann", "operations": ["read", "write"], "kind": "topic", "pattern": "a*",
    }  # fmt: skip
    check = {"principal": "user:ann", "operation": "read", "kind": "topic", "name": TOPIC}
    return [
        Request("POST", "/v1/tokens", (), JSON, None, json.dumps(token).encode()),
        Request("GET", "/v1/tokens", (("limit", "3"),)),
        Request("DELETE", "/v1/tokens/abcdefghijkl", (("force", "true"),)),
        Request("POST", "/v1/acls", (), JSON, None, json.dumps(acl).encode()),
        Request("GET", "/v1/acls", (("kind", "topic"), ("name", "orders"), ("limit", "3"))),
        Request("DELETE", "/v1/acls/0123456789abcdef", (("force", "true"),)),
        Request("POST", "/v1/acls:check", (), JSON, None, json.dumps(check).encode()),
        Request(
            "PUT", "/v1/quotas/user:ann", (), JSON, None, b'{"each": {"fetch_bytes_per_second": 1000000}}'
        ),
        Request("GET", "/v1/whoami"),
    ]


TAILS: Final = tuple(
    Request("GET", f"/v1/topics/{TOPIC}/records", query, None, accept)
    for query in ((("from", "earliest"), ("max_records", "2")), (("from", "latest"), ("encoding", "json")))
    for accept in ("text/event-stream", "application/x-ndjson")
)
TAIL_SECONDS: Final = 0.005
"""Time after which the client of a tail disconnects, because a tail may have no end."""


class RequestMutations:
    """Makes mutated requests from one seed."""

    def __init__(self, seed: int, topic_id: str, further: Sequence[Request] = ()) -> None:
        self._random = random.Random(seed)
        self._batches = Mutations(seed)
        self._topic_id = topic_id
        self._originals = [
            *originals(topic_id, self._batches.originals[0]),
            *originals_of_formats(),
            *further,
        ]

    def next(self) -> Request:
        """Return the next request."""
        rng = self._random
        request = rng.choice(self._originals)
        parts: dict[str, Any] = {field.name: getattr(request, field.name) for field in fields(request)}
        for _ in range(rng.choice((1, 1, 2))):
            change = rng.choices((self._body, self._query, self._path, self._headers), (70, 15, 7, 8))[0]
            change(parts)
        return Request(**parts)

    def _body(self, parts: dict[str, Any]) -> None:
        rng, body = self._random, bytearray(parts["body"])
        if parts["media_type"] == BATCHES:
            parts["body"] = self._batches.next()[0]
        elif parts["media_type"] == FRAMES and rng.random() < 0.7:
            meta = json.dumps(
                {"topic_id": self._topic_id, "partition": rng.choice((0, 0, 1, -1, 2**31))}
            ).encode()
            parts["body"] = b"".join(bytes(part) for part in encode_frame(meta, [self._batches.next()[0]]))
        elif body:
            self._splice(body)
            parts["body"] = bytes(body)

    def _splice(self, body: bytearray) -> None:
        """Flip a bit, truncate, repeat a piece, or replace a piece with a JSON value."""
        rng = self._random
        at = rng.randrange(len(body))
        pick = rng.random()
        if pick < 0.2:
            body[at] ^= 1 << rng.randrange(8)
        elif pick < 0.35:
            del body[at : at + rng.choice((1, 4, 8, 64, len(body)))]
        elif pick < 0.45:
            body[at:at] = body[at : at + rng.randrange(40)]
        else:
            colon = body.find(b":", at)
            start = colon + 1 if colon >= 0 else at
            body[start : start + rng.choice((0, 1, 2, 6, 20))] = rng.choice(TOKENS)

    def _query(self, parts: dict[str, Any]) -> None:
        rng, query = self._random, list(parts["query"])
        names = (
            "acks",
            "offset",
            "timestamp",
            "max_wait_ms",
            "min_bytes",
            "encoding",
            "topics",
            "x",
            "timeout_ms",
        )
        if query and rng.random() < 0.6:
            at = rng.randrange(len(query))
            query[at] = (query[at][0], rng.choice(WORDS))
        else:
            query.append((rng.choice(names), rng.choice(WORDS)))
        parts["query"] = tuple(query)

    def _path(self, parts: dict[str, Any]) -> None:
        rng = self._random
        segments = parts["path"].split("/")
        segments[rng.randrange(1, len(segments))] = rng.choice(WORDS)
        parts["path"] = "/".join(segments)
        if rng.random() < 0.2:
            parts["method"] = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "\u00e9"))

    def _headers(self, parts: dict[str, Any]) -> None:
        rng = self._random
        names = (
            "fairlead-producer-id", "fairlead-base-sequence", "fairlead-producer-epoch", "idempotency-key",
            "fairlead-topic-id", "fairlead-leader-epoch", "if-none-match", "content-encoding", "origin", "host",
            "sec-fetch-site", "authorization",
        )  # fmt: skip
        if rng.random() < 0.3:
            parts["media_type"] = rng.choice((JSON, FRAMES, BATCHES, "text/plain", "", "a/b;c=d", None))
        elif rng.random() < 0.3:
            parts["accept"] = rng.choice((JSON, "*/*", "text/html;q=2", "", ",", "application/*;q=0"))
        else:
            parts["headers"] = (*parts["headers"], (rng.choice(names), rng.choice(WORDS)))


class Answers:
    """Passes requests to the application and collects its answers."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def answer(self, request: Request) -> tuple[int, bytes]:
        """Return status and body. An exception raised by the application is passed on."""
        headers = [(b"host", b"127.0.0.1")]
        headers += [(name.encode(), value.encode()) for name, value in request.headers]
        for name, value in (("content-type", request.media_type), ("accept", request.accept)):
            if value is not None:
                headers.append((name.encode(), value.encode()))
        headers.append((b"content-length", b"%d" % len(request.body)))
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "2",
            "scheme": "http",
            "method": request.method,
            "path": request.path,
            "raw_path": quote(request.path, safe="/:%").encode(),
            "query_string": "&".join(f"{name}={quote(value)}" for name, value in request.query).encode(),
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        unread = [{"type": "http.request", "body": request.body, "more_body": False}]
        gone: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if request.method == "GET" and request.path == f"/v1/topics/{TOPIC}/records":
            asyncio.get_running_loop().call_later(TAIL_SECONDS, gone.set_result, {"type": "http.disconnect"})
        status, body = 0, bytearray()

        async def receive() -> dict[str, Any]:
            return unread.pop() if unread else await gone

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                body.extend(message.get("body", b""))

        await self._application(scope, receive, send)
        return status, bytes(body)


def complaint(status: int, body: bytes) -> str | None:
    """Return a description of an invalid answer, or None if the answer is valid."""
    if not 200 <= status < 600 or status == 500:
        return f"status {status}: {body[:300]!r}"
    if status < 400 or not body:
        return None
    document = json.loads(body)
    if document.get("code") not in CATALOGUE:
        return f"no problem of the catalogue: {body[:300]!r}"
    return None


async def control(answers: Answers, stored: list[bytes]) -> str | None:
    """Store a record among the mutated requests, and read all records back."""
    value = b"%d" % len(stored)
    at = f"/v1/topics/{CONTROL}/partitions/0/records"
    batch = encode(record_batch([value], default_timestamp_us=1_700_000_000_000_000)).to_bytes()
    status, body = await answers.answer(Request("POST", at, (), BATCHES, None, batch))
    if status != 200:
        return f"a good record is refused with {status}: {body[:300]!r}"
    stored.append(value)
    status, body = await answers.answer(
        Request("GET", at, (("offset", "0"), ("max_bytes", "16777216")), None, BATCHES)
    )
    found = [record.value for record in decode_records(body)]
    return None if found == stored else f"read back {len(found)} records of {len(stored)}"


async def run(mutants: int, seed: int, folder: Path) -> dict[str, object]:
    """Judge `mutants` mutants; report the counts of answers and the first violated guarantee."""
    limits = Limits(fetch_wait_seconds_max=0.001, produce_timeout_seconds_max=1)
    settings = BrokerSettings(data=folder, limits=limits, config_values={"retention.bytes": 1 << 26})
    telemetry, clock = Telemetry(), SystemClock()
    numbers = random.Random(seed)
    new_id = lambda: f"{numbers.getrandbits(32):08x}-0000-4000-8000-{numbers.getrandbits(48):012x}"  # noqa: E731
    runtime = await open_broker(settings, telemetry, clock, release="fuzz", new_id=new_id)
    try:
        for name in (TOPIC, CONTROL):
            await runtime.create_topic(
                CreateTopicRequest(name=name, partitions=1, config={"durability": "replicated"})
            )
        endpoints = build_endpoints(runtime).data
        routes = [route for route in ROUTES if route.listener is Listener.DATA]
        metrics, failures = RequestMetrics(telemetry, access_log=False), FailureLog(telemetry.log, "fuzz")
        answers = Answers(
            Application(routes, endpoints, clock, metrics, failures, host_check=HostCheck((), ()))
        )
        return await judge(
            answers, RequestMutations(seed, runtime.views.by_name(TOPIC).topic_id, TAILS), mutants, seed
        )
    finally:
        await runtime.stop()


async def judge(answers: Answers, mutations: RequestMutations, mutants: int, seed: int) -> dict[str, object]:
    """Answer the mutants one after another."""
    statuses, broken, stored = Counter[int](), None, list[bytes]()
    for number in range(mutants):
        request = mutations.next()
        try:
            status, body = await answers.answer(request)
            wrong = complaint(status, body)
        except Exception as error:  # noqa: BLE001 - every error is a finding
            status, wrong = 0, repr(error)
        statuses[status] += 1
        if wrong is None and number % CONTROL_EVERY == 0:
            wrong = await control(answers, stored)
        if wrong is not None:
            broken = {"mutant": number, "wrong": wrong, "request": repr(request)}
            break
    return {"seed": seed, "mutants": sum(statuses.values()), "statuses": dict(statuses), "broken": broken}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    set_up_logging("json", "error")
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(arguments.mutants, arguments.seed, Path(folder)))
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
