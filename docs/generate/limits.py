"""Page of all limits: configurable limits, read from the settings, built-in limits, and what overload costs."""

# ruff: noqa: E501 - rows of a table

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from page_text import GENERATED, code, field_texts, table
from pydantic.fields import FieldInfo  # noqa: TC002 - a top-level import shows the dependency
from records import overload_figures

from fairlead_broker.settings import Limits

TEXT = """# Limits

Every resource whose usage depends on callers is limited, and each limit has a reason. If a shared limit is reached,
requests are refused with [`overloaded`](problems/overloaded.md) (503 with `Retry-After`). If a single request is too large,
it is refused with `body_too_large`, `batch_too_large` or `malformed_request`. [Overload](../explanation/overload.md)
explains how the limits work together, and [the figures below](#what-overload-and-attacks-cost) show what overload and
attacks cost. The limits of numbers in requests are listed in
[decision 0022](../decisions/0022-limits-of-requests.md), and the limits of topics are [configuration keys](configuration.md).

## Limits that can be set

These limits are set in the group `limits` of the configuration file, or as variables `FAIRLEAD_LIMITS__<NAME>`.

"""
BUILT_IN_TEXT = """
## Limits that are built in

"""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A constant in the code: its module and name, its unit, and the reason for its value."""

    module: str
    name: str
    unit: str
    reason: str

    @property
    def value(self) -> float:
        """The value of the constant."""
        value: float = getattr(import_module(self.module), self.name)
        return value


_SERVER = "fairlead_broker.server"
_RUNTIME = "fairlead_broker.runtime"
BUILT_IN = (
    BuiltIn(f"{_SERVER}.http.body", "CALLS_MIN", "calls", "Number of produce calls that are always admitted, even if the event loop is late."),
    BuiltIn(f"{_SERVER}.http.body", "EXCESS_PERCENT", "percent", "Excess over the limit of produce calls, in percent, up to which a call is still admitted if its caller has fewer calls in progress than its equal part."),
    BuiltIn(f"{_SERVER}.http.body", "LATE_SECONDS", "s", "Lag of the event loop above which fewer produce calls are admitted. A refusal takes three or four turns of the loop and should take less than 0.1 s."),
    BuiltIn(f"{_SERVER}.http.call", "PART_BYTES_MAX", "bytes", "Size of one piece of an answer. The HTTP server queues four pieces and holds a fifth piece. Pieces of 1 MiB would not be faster, and a stalled reader would hold 6.5 MiB instead of 1.9 MiB."),
    BuiltIn(f"{_RUNTIME}.engine.budget", "SMALL_ANSWER_BYTES", "bytes", "Size up to which a fetch answer is sent in one piece, even if `answers_bytes_max` is reached."),
    BuiltIn("fairlead_api.batch.header", "RECORDS_MAX", "records", "Number of records in one batch: a few kilobytes can contain millions of empty records."),
    BuiltIn("fairlead_api.batch.header", "HEADERS_MAX", "headers", "Number of headers of all records in one batch."),
    BuiltIn("fairlead_api.batch.header", "RECORD_HEADERS_MAX", "headers", "Number of headers of one record."),
    BuiltIn("fairlead_api.bodies.json_slices", "OBJECTS_MAX", "objects and arrays", "Number of objects and arrays in one JSON body: each takes 60 bytes or more after it is parsed."),
    BuiltIn("fairlead_api.bodies.json_slices", "RECORD_BYTES_MAX", "bytes", "Text of one record in a JSON body, a line or an event, or of one value that an answer contains as JSON; the text is parsed in one call. Larger records are sent as Arrow or as record batches."),
    BuiltIn("fairlead_api.bodies.json_slices", "RECORD_PARTS_MAX", "values", "Number of values in one record of more than 128 KiB of JSON text."),
    BuiltIn("fairlead_api.bodies.json_slices", "SURROUNDING_BYTES_MAX", "bytes", "Text of a JSON body outside its records."),
    BuiltIn(f"{_SERVER}.records.fetched_records", "TEXT_BYTES_MAX", "bytes", "Bytes of text after which a JSON answer ends early, with the offset at which the next read continues."),
    BuiltIn("fairlead_api.bodies.payload_texts", "PAYLOAD_TEXT_BYTES_MAX", "bytes", "Text of one key or value in a JSON answer. Larger records are fetched as Arrow or as record batches."),
    BuiltIn(f"{_SERVER}.records.fetched_records", "HEADER_BYTES_MAX", "bytes", "Size of the headers of one record in a JSON answer."),
    BuiltIn(f"{_SERVER}.http.codec_threads", "CODEC_THREADS", "threads", "Number of JSON and Arrow bodies that are parsed or written at the same time: each can take ten times its size in memory."),
    BuiltIn(f"{_SERVER}.records.fetched_records", "OPENED_BYTES_MAX", "bytes", "Bytes of decompressed records after which a JSON or Arrow answer ends early, with the offset at which the next read continues."),
    BuiltIn(f"{_SERVER}.records.fetch", "DECODED_BYTES_MAX", "bytes", "Bytes of stored batches that are read for one JSON or Arrow answer."),
    BuiltIn(f"{_SERVER}.records.fetch", "REQUEST_BYTES_MAX", "bytes", "Size of the body of a fetch, which is enough for 10,000 partitions."),
    BuiltIn(f"{_SERVER}.http.call", "ADMIN_BYTES_MAX", "bytes", "Size of the body of an admin call."),
    BuiltIn(f"{_SERVER}.admin.groups", "COMMIT_BYTES_MAX", "bytes", "Size of the body of an offset commit, which is enough for 10,000 partitions with metadata."),
    BuiltIn(f"{_SERVER}.admin.groups", "COORDINATOR_SECONDS_MAX", "s", "Time limit of a call about a group; the group's coordinator may have to claim and load the group, and to wait for its turn to write."),
    BuiltIn(f"{_SERVER}.http.body", "DRAIN_BYTES_MAX", "bytes", "Bytes of a refused HTTP/2 body that are read and discarded, so that the client receives the answer."),
    BuiltIn(f"{_SERVER}.http.body", "HTTP1_DRAIN_BYTES_MAX", "bytes", "Bytes of a refused HTTP/1.1 body that are read and discarded before the connection is closed."),
    BuiltIn(f"{_SERVER}.http.body", "DRAIN_SECONDS_MAX", "s", "Time for which a refused body is read and discarded."),
    BuiltIn(f"{_SERVER}.http.http2_listener", "STREAM_WINDOW_BYTES", "bytes", "Bytes that a client may send ahead on one HTTP/2 stream. Smaller windows make large bodies three to five times slower."),
    BuiltIn(f"{_SERVER}.http.http2_listener", "CONNECTION_WINDOW_BYTES", "bytes", "Bytes that a client may send ahead on one HTTP/2 connection."),
    BuiltIn(f"{_SERVER}.http.http2_listener", "FRAME_BYTES_MAX", "bytes", "HTTP/2 frame."),
    BuiltIn(
        f"{_SERVER}.http.http2_listener",
        "SEND_BUFFER_BYTES_MAX",
        "bytes",
        "Bytes of one answer that wait in the HTTP server while the client does not read.",
    ),
    BuiltIn(f"{_SERVER}.http.http2_listener", "PING_TIMEOUT_SECONDS", "s", "Time after which an HTTP/2 connection is closed if a ping is not answered."),
    BuiltIn(f"{_SERVER}.connections.connection_guard", "LATE_SECONDS", "s", "Lag of the event loop above which new connections with refused tokens are counted for each address."),
    BuiltIn(f"{_SERVER}.connections.connection_guard", "NEW_MIN", "connections", "Number of such connections within 50 ms from which new connections of the address are ignored."),
    BuiltIn(f"{_SERVER}.connections.connection_guard", "IGNORE_SECONDS", "s", "Time for which new connections of the address are ignored."),
    BuiltIn(f"{_SERVER}.connections.connection_filter", "NETWORKS_MAX", "addresses", "Number of addresses whose new connections are ignored at a time."),
    BuiltIn(f"{_SERVER}.connections.bound_socket", "BACKLOG", "connections", "Number of connections that wait to be accepted."),
    BuiltIn(f"{_SERVER}.http.listener_generations", "HANDSHAKE_SECONDS_MAX", "s", "Time after which the HTTP server ends a handshake of TLS."),
    BuiltIn(f"{_SERVER}.connections.connection_guard", "LOOK_SECONDS_MAX", "s", "Interval at which connections without a request are checked."),
    BuiltIn("fairlead_broker.credentials.bearer", "HEADER_BYTES_MAX", "bytes", "Size of the header `Authorization`. A longer header is refused unread."),
    BuiltIn("fairlead_broker.credentials.failure_budget", "BURST", "tokens", "Number of wrong tokens that one address (for IPv6, one /64 network) may send at once; further tokens that the broker does not know are answered with `throttled` without verification. Known callers behind the address are not affected."),
    BuiltIn("fairlead_broker.credentials.failure_budget", "FAILURES_PER_SECOND", "tokens", "Number of further wrong tokens that one address may send per second."),
    BuiltIn("fairlead_broker.credentials.failure_budget", "ADDRESSES_MAX", "addresses", "Number of addresses whose wrong tokens are counted."),
    BuiltIn("fairlead_broker.credentials.refused_tokens", "REFUSED_MAX", "tokens", "Number of wrong tokens that are remembered, about 1 MB in total: a client that repeats a wrong token is refused without another check."),
    BuiltIn("fairlead_broker.credentials.refused_tokens", "REMEMBERED_SECONDS", "s", "Time for which a wrong token is remembered, unless tokens, ACLs or keys of issuers change."),
    BuiltIn("fairlead_broker.runtime.security_view", "CALLERS_MAX", "callers", "Number of callers whose verified tokens are remembered."),
    BuiltIn("fairlead_broker.access.decision", "DECISIONS_MAX", "decisions", "Number of cached decisions of one caller; the limit is needed because a caller may send any number of names."),
    BuiltIn("fairlead_broker.access.decision", "DECISIONS_IN_ALL_MAX", "decisions", "Number of cached decisions about all callers, less than 100 MB with the longest names. A decision that is not cached takes a few microseconds."),
    BuiltIn("fairlead_broker.identity.signed_tokens", "CHECKS_PER_SECOND_MAX", "signatures", "Number of signatures of tokens that a broker checks in a second, each of which takes about 0.1 ms; further calls wait for up to a second."),
    BuiltIn("fairlead_broker.identity.issuer_keys", "ATTEMPT_SECONDS_MIN", "s", "Minimum time between two fetches of an issuer's keys because of tokens with unknown keys."),
    BuiltIn("fairlead_broker.access.refusal_sums", "CALLER_KINDS_MAX", "refusals", "Number of different refusals of one caller, or of one address without a token, that the audit log reports separately in ten seconds. Further refusals are counted in one record, because a caller may vary the names in its calls."),
    BuiltIn("fairlead_broker.access.refusal_sums", "KINDS_MAX", "refusals", "Number of different refusals of all callers that the audit log reports separately in ten seconds."),
    BuiltIn(f"{_RUNTIME}.audit_log", "LINES_MAX", "records", "Number of records of the audit log that wait for the topic `__audit`, about 4 MB; further records are not written to the topic but counted, because a request never waits for the topic."),
    BuiltIn(f"{_SERVER}.ops_listener", "REQUESTS_AT_ONCE_MAX", "requests", "Number of concurrent requests on the ops listener: enough for probes and a few scrapers."),
    BuiltIn(f"{_SERVER}.ops_listener", "KEEP_ALIVE_SECONDS", "s", "Time after which an idle connection to the ops listener is closed."),
    BuiltIn("fairlead_broker.controller.failure_detector", "ENDED_MAX", "incarnations", "Number of brokers whose leases one broker may end at once because their peer ports refuse connections. A network that refuses connections by mistake then causes only a few elections."),
    BuiltIn("fairlead_broker.controller.failure_detector", "ENDED_SECONDS", "s", "Interval at which a broker that has ended several leases may end one more because a peer port refuses connections."),
    BuiltIn("fairlead_broker.controller.failure_detector", "SPARED_SECONDS", "s", "Time for which a process that has survived the end of its lease is detected by its lease alone; the time doubles each time, up to an hour."),
    BuiltIn(f"{_RUNTIME}.leading.fetching", "ON_LOOP_BYTES_MAX", "bytes", "Bytes that are read on the event loop for one fetch; the disk pool reads the rest."),
)  # fmt: skip


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    texts = field_texts(Limits)
    set_rows = [_setting(name, field, texts[name]) for name, field in Limits.model_fields.items()]
    built_rows = [[code(each.name), _built_in(each), each.reason] for each in BUILT_IN]
    text = TEXT + table(["name", "default", "allowed", "reason"], set_rows)
    return {
        "limits.md": GENERATED
        + text
        + BUILT_IN_TEXT
        + table(["name", "value", "reason"], built_rows)
        + overload_figures.sections()
    }


def _setting(name: str, field: FieldInfo, reason: str) -> list[str]:
    bounds = {type(each).__name__: each for each in field.metadata}
    signs = {"Gt": ("above", "gt"), "Ge": ("from", "ge"), "Le": ("to", "le")}
    number = _bytes if "_bytes_" in f"{name}_" else _number
    allowed = [
        f"{word} {number(getattr(bounds[kind], attribute))}"
        for kind, (word, attribute) in signs.items()
        if kind in bounds
    ]
    default = "none" if field.default is None else number(field.default)
    return [f'<a id="{name}"></a>{code(name)}', default, " ".join(allowed), reason]


def _built_in(limit: BuiltIn) -> str:
    return _bytes(limit.value) if limit.unit == "bytes" else f"{_number(limit.value)} {limit.unit}"


def _bytes(value: float) -> str:
    for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size and value % size == 0:
            return f"{value // size:,} {unit}"
    return f"{_number(value)} bytes"


def _number(value: float) -> str:
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
