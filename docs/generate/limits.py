"""Page of all limits: configurable limits, which are read from the settings, and built-in limits."""

# ruff: noqa: E501 - rows of a table

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from page_text import GENERATED, code, field_texts, table
from pydantic.fields import FieldInfo  # noqa: TC002 - a top-level import shows the dependency

from fairlead_broker.settings import Limits

TEXT = """# Limits

Everything that a caller can make grow has a bound, and each bound has its reason. Refusals for lack of room are
[`overloaded`](problems/overloaded.md) (503 with `Retry-After`); what one request has too much of is
`body_too_large`, `batch_too_large` or `malformed_request`. How they work together, and what attacks were measured, is in
[Overload](../explanation/overload.md); the bounds of numbers in requests are in
[decision 0022](../decisions/0022-limits-of-requests.md), those of topics among the [configuration keys](configuration.md).

## Limits that can be set

In the group `limits` of the configuration file, or as `FAIRLEAD_LIMITS__<NAME>`.

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
    BuiltIn(f"{_SERVER}.http.body", "CALLS_MIN", "calls", "Produce calls that are let in however late the event loop is."),
    BuiltIn(f"{_SERVER}.http.body", "LATE_SECONDS", "s", "Lag of the event loop from which fewer produce calls are let in; a refusal takes three or four turns of the loop and is to take less than 0.1 s."),
    BuiltIn(f"{_SERVER}.http.call", "PART_BYTES_MAX", "bytes", "Piece of an answer. The HTTP server queues four and holds a fifth: as quick as pieces of a MiB, and a stalled reader holds 1.9 MiB rather than 6.5."),
    BuiltIn(f"{_RUNTIME}.engine.budget", "SMALL_ANSWER_BYTES", "bytes", "Fetch answer that is served however full `answers_bytes_max` is: it leaves in one piece."),
    BuiltIn("fairlead_api.batch.header", "RECORDS_MAX", "records", "Records of one batch: a few kilobytes can hold millions of empty records."),
    BuiltIn("fairlead_api.batch.header", "HEADERS_MAX", "headers", "Headers of all records of one batch."),
    BuiltIn("fairlead_api.batch.header", "RECORD_HEADERS_MAX", "headers", "Headers of one record."),
    BuiltIn("fairlead_api.bodies.json_bodies", "OBJECTS_MAX", "objects and arrays", "Of one JSON body: each takes 60 bytes or more once it is parsed."),
    BuiltIn(f"{_SERVER}.records.fetched_records", "TEXT_BYTES_MAX", "bytes", "Text after which a JSON answer ends early, with the offset to go on from."),
    BuiltIn(f"{_SERVER}.http.codec_threads", "CODEC_THREADS", "threads", "JSON and Arrow bodies parsed or written at once: each may take ten times its size."),
    BuiltIn(f"{_SERVER}.records.fetched_records", "OPENED_BYTES_MAX", "bytes", "Decompressed records in one JSON or Arrow answer; it ends early beyond, with the offset to go on from."),
    BuiltIn(f"{_SERVER}.records.fetch", "DECODED_BYTES_MAX", "bytes", "Stored batches read for one JSON or Arrow answer."),
    BuiltIn(f"{_SERVER}.records.fetch", "REQUEST_BYTES_MAX", "bytes", "Body of a fetch over many partitions: 10,000 of them."),
    BuiltIn(f"{_SERVER}.http.call", "ADMIN_BYTES_MAX", "bytes", "Body of an admin call."),
    BuiltIn(f"{_SERVER}.admin.groups", "COMMIT_BYTES_MAX", "bytes", "Body of a commit of offsets: 10,000 partitions with metadata."),
    BuiltIn(f"{_SERVER}.routing.group_forwarding", "COORDINATOR_SECONDS_MAX", "s", "Time for a call about a group: its coordinator may have to claim and load it, and to wait for its turn to write."),
    BuiltIn(f"{_SERVER}.http.body", "DRAIN_BYTES_MAX", "bytes", "Read and thrown away of a refused HTTP/2 body, so that the answer arrives."),
    BuiltIn(f"{_SERVER}.http.body", "HTTP1_DRAIN_BYTES_MAX", "bytes", "The same over HTTP/1.1, where stopping means closing the connection."),
    BuiltIn(f"{_SERVER}.http.body", "DRAIN_SECONDS_MAX", "s", "Time for that."),
    BuiltIn(f"{_SERVER}.http.http2_listener", "STREAM_WINDOW_BYTES", "bytes", "What one HTTP/2 stream may send ahead. Smaller windows make large bodies three to five times slower."),
    BuiltIn(f"{_SERVER}.http.http2_listener", "CONNECTION_WINDOW_BYTES", "bytes", "What one HTTP/2 connection may send ahead."),
    BuiltIn(f"{_SERVER}.http.http2_listener", "FRAME_BYTES_MAX", "bytes", "HTTP/2 frame."),
    BuiltIn(
        f"{_SERVER}.http.http2_listener",
        "SEND_BUFFER_BYTES_MAX",
        "bytes",
        "What waits in the HTTP server of one answer that its client does not take.",
    ),
    BuiltIn(f"{_SERVER}.http.http2_listener", "PING_TIMEOUT_SECONDS", "s", "An HTTP/2 ping without answer for so long ends the connection."),
    BuiltIn(f"{_SERVER}.http.bound_socket", "BACKLOG", "connections", "Connections that wait to be accepted."),
    BuiltIn(f"{_SERVER}.ops_listener", "REQUESTS_AT_ONCE_MAX", "requests", "On the ops listener: probes and a few scrapers."),
    BuiltIn(f"{_SERVER}.ops_listener", "KEEP_ALIVE_SECONDS", "s", "Idle connection of the ops listener."),
    BuiltIn(f"{_RUNTIME}.leading.fetching", "ON_LOOP_BYTES_MAX", "bytes", "Read on the event loop for one fetch; the rest goes to the disk pool."),
)  # fmt: skip


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    texts = field_texts(Limits)
    set_rows = [_setting(name, field, texts[name]) for name, field in Limits.model_fields.items()]
    built_rows = [[code(each.name), _built_in(each), each.reason] for each in BUILT_IN]
    text = TEXT + table(["name", "default", "allowed", "reason"], set_rows)
    return {"limits.md": GENERATED + text + BUILT_IN_TEXT + table(["name", "value", "reason"], built_rows)}


def _setting(name: str, field: FieldInfo, reason: str) -> list[str]:
    bounds = {type(each).__name__: each for each in field.metadata}
    signs = {"Gt": ("above", "gt"), "Ge": ("from", "ge"), "Le": ("to", "le")}
    number = _bytes if "_bytes_" in f"{name}_" else _number
    allowed = [
        f"{word} {number(getattr(bounds[kind], attribute))}"
        for kind, (word, attribute) in signs.items()
        if kind in bounds
    ]
    return [f'<a id="{name}"></a>{code(name)}', number(field.default), " ".join(allowed), reason]


def _built_in(limit: BuiltIn) -> str:
    return _bytes(limit.value) if limit.unit == "bytes" else f"{_number(limit.value)} {limit.unit}"


def _bytes(value: float) -> str:
    for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size and value % size == 0:
            return f"{value // size:,} {unit}"
    return f"{_number(value)} bytes"


def _number(value: float) -> str:
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
