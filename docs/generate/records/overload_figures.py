"""Sections of the page of limits with the figures that `make prove PROVE=overload` measured.

All figures come from docs/proof/overload.json. A row appears only if the record contains its figures, and a table only
if it has a row, so the page states nothing that was not measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from page_text import table

RECORD: Final = Path(__file__).resolve().parents[2] / "proof/overload.json"
RECORD_TEXT: Final = """
## What overload and attacks cost

`make prove PROVE=overload` measures the figures of the following sections and stores them in
`docs/proof/overload.json`. `make test` runs the same attacks with smaller numbers. The record is from {date} and from a
machine with {cores} cores, which brokers, attackers and clients share; {outcome}. During each attack, another client
writes a record of 1 KB with `acks=all` and reads it again, 50 times a second. The latency of the other client is the
time of a write and a read together.
"""
ATTACKS_TEXT: Final = """
The attacks in this table come from clients that may use the broker:

"""
STRANGERS_TEXT: Final = """
## What an unknown caller costs

A broker in `enforce` mode refuses a caller without a valid token before it reads the query and the body of a request.
All requests of a broker share one event loop, so an unknown caller that never pauses can use the whole processor of the
broker, and a request of another client waits for all requests that arrived before it. `streams_per_connection_max` and
`connections_per_address_max` limit the requests in flight of one address, and thereby their memory and the delay. The
connections of the caller are closed after twice `first_request_seconds_max`, and a connection is closed after a
thousand bodies that were refused before their end. If the caller opens one connection after the other, the broker
ignores new connections from its address for ten seconds at a time
([decision 0716](../decisions/0716-new-connections-of-refused-addresses-are-ignored-while-the-loop-is-late.md)).
"""
REQUESTS_TEXT: Final = """
The unknown caller sends another request after each answer. The other client has a token, and the CPU of its requests is
not included:

"""
CONNECTIONS_TEXT: Final = """
Attacks on connections by an unknown caller:

"""
UNREAD_TEXT: Final = """
An unknown caller that opens connections one after the other, sends requests on them, and reads no answer. The broker
closes each connection, and ignores further connections from the address while it is late:

"""
HANDSHAKES_TEXT: Final = """
This table shows an unknown caller that opens TLS connections without pause and makes no request. A handshake that the
caller abandons at the broker's first message costs the caller almost nothing. The CPU of the other client's requests is
not included:

"""
GOODPUT_TEXT: Final = """
## What a broker does at twice its capacity

In each round, the load generator measures the peak, and then offers twice the peak and ignores `Retry-After`. The
table shows the medians of all rounds. The load generator runs on the same processors as the broker, so its own waiting
is part of the latencies.

"""
STOP_TEXT: Final = """
A broker with {unsynced_mib} MiB of unsynced records, {long_polls} long polls and {producers} producers
stopped {seconds} s after SIGTERM. It answered the long polls after {polls_answered_after_s} s.
"""
TENANTS_TEXT: Final = """
## How exactly a quota holds

A caller produces much more than its quota for bytes, and ignores the waiting times of refusals; another caller writes
and reads 100 times a second. The shares are relative to the quota, which all brokers of the cluster keep together. The
first seconds, in which the brokers learn the usage of each other, are not included. Slices of five seconds without
load, with the load that the quota allows, and with the load above it take turns, and the latencies are the medians of
their 99th percentiles ([decision 0713](../decisions/0713-a-busy-tenant-is-compared-with-its-allowed-load.md)).
"""

ATTACKS: Final = {
    "rapid_reset": "pairs of HEADERS and RST_STREAM (HTTP/2 rapid reset)",
    "slow_headers": "connections that send their request head slowly",
    "idle_connections": "idle connections",
    "giant_headers": "requests with giant heads, over each of HTTP/1.1 and HTTP/2",
    "slow_bodies": "requests that send their body slowly",
    "compression_bombs": "batches that decompress to more than the limit",
    "many_objects": "readers of a batch with as many empty records as a batch may have",
    "much_text": "readers of each of two records that expand to many JSON objects, or to much text",
    "stalled_readers_http1": "readers that ask for 64 MiB and stall, over HTTP/1.1",
    "stalled_readers_http2": "readers that ask for 64 MiB and stall, over HTTP/2",
    "stalled_tails": "tails whose readers stall",
    "stalled_readers_of_json": "readers of JSON that stall",
}
"""Attacks by their names in the record, with a text that follows the number."""
STRANGERS: Final = {
    "requests, no token": "reads of metadata without a token",
    "requests, no token, over TLS": "reads of metadata without a token, over TLS",
    "requests, one wrong token": "reads of metadata, all with the same wrong token",
    "requests, many wrong tokens": "reads of metadata, each with a different wrong token",
    "long polls, no token": "long polls without a token",
    "tails, no token": "tails without a token",
    "JSON, no token": "JSON bodies of 256 KiB without a token",
    "large bodies, no token": "batches of 1 MiB without a token",
    "flood": "batches of 100 bytes without a token, as many at once as 16 connections allow",
}
"""Kinds of requests of an unknown caller by their names in the record."""
HANDSHAKES: Final = {
    "finished": "TLS handshakes, each followed by a close",
    "abandoned": "TLS handshakes, each abandoned at the broker's first message",
}
"""Kinds of handshakes of an unknown caller by their names in the record."""
CONTROLLER_KILLED: Final = "controller killed"

Counts = dict[str, Any]


def sections() -> str:
    """Return the sections with the figures of the record."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    counts: Counts = record["counts"]
    outcome = (
        "all bounds of the tests were kept" if record["passed"] else "the record names the tests that failed"
    )
    about = RECORD_TEXT.format(
        date=record["made_at"].partition("T")[0], cores=record["machine"]["cores"], outcome=outcome
    )
    return about + attacks(counts) + strangers(counts) + goodput(counts) + tenants(counts)


def attacks(counts: Counts) -> str:
    """Return the section of the attacks by callers that may use the broker."""
    return _after(ATTACKS_TEXT, _attack_columns(), _attack_rows(counts, ""))


def strangers(counts: Counts) -> str:
    """Return the section of requests and connections of an unknown caller."""
    columns = [
        "requests of an unknown caller", "in flight", "answers", "refused per second", "broker CPU of a request, ms",
        "share of one processor", "p99 of the other client before, ms", "during, ms", "its failed requests",
        "additional memory, MiB",
    ]  # fmt: skip
    rows = [
        [
            text,
            f"{found['in_flight']:,}",
            " and ".join(sorted(found.get("statuses", ["refused"]))),
            f"{found['requests_per_second']:,}",
            f"{found['broker_cpu_us_per_request'] / 1000:.2f}",
            f"{found['broker_cpu_share']:.0%}",
            _milliseconds(found["quiet_p99_ms"]),
            _milliseconds(found["beside_p99_ms"]),
            str(found["failures"]),
            str(found["memory_peak_mib"] - found["memory_before_mib"]),
        ]
        for name, text in STRANGERS.items()
        if (found := counts.get(f"stranger: {name}"))
    ]
    return (
        STRANGERS_TEXT
        + _after(REQUESTS_TEXT, columns, rows)
        + _after(CONNECTIONS_TEXT, _attack_columns(), _attack_rows(counts, "stranger: "))
        + _unread(counts)
        + _handshakes(counts)
    )


def _unread(counts: Counts) -> str:
    """Return the table of connections on which an unknown caller reads no answer."""
    columns = [
        "protocol", "closed connections", "share of one processor", "p99 of the other client before, ms", "during, ms",
        "afterwards, ms", "its failed requests", "additional memory, MiB",
    ]  # fmt: skip
    rows = [
        [
            protocol,
            f"{found['closed']:,}",
            f"{found['broker_cpu_share']:.0%}",
            *(_milliseconds(found[f"{when}_p99_ms"]) for when in ("quiet", "beside", "after")),
            str(found["failures"]),
            str(found["memory_peak_mib"] - found["memory_before_mib"]),
        ]
        for protocol in ("HTTP/1.1", "HTTP/2")
        if (found := counts.get(f"stranger: unread answers, {protocol}"))
    ]
    return _after(UNREAD_TEXT, columns, rows)


def _handshakes(counts: Counts) -> str:
    """Return the table of TLS handshakes of an unknown caller."""
    columns = [
        "handshakes of an unknown caller", "in flight", "per second", "broker CPU of a handshake, ms",
        "share of one processor", "p99 of the other client before, ms", "during, ms", "afterwards, ms",
        "its failed requests", "additional memory, MiB",
    ]  # fmt: skip
    rows = [
        [
            text,
            f"{found['in_flight']:,}",
            f"{found['handshakes_per_second']:,}",
            f"{found['broker_cpu_us_per_handshake'] / 1000:.2f}",
            f"{found['broker_cpu_share']:.0%}",
            *(_milliseconds(found[f"{when}_p99_ms"]) for when in ("quiet", "beside", "after")),
            str(found["failures"]),
            str(found["memory_peak_mib"] - found["memory_before_mib"]),
        ]
        for name, text in HANDSHAKES.items()
        if (found := counts.get(f"stranger: handshakes, {name}"))
    ]
    return _after(HANDSHAKES_TEXT, columns, rows)


def goodput(counts: Counts) -> str:
    """Return the section of the load of twice the capacity, and of the stop of a loaded broker."""
    columns = [
        "requests", "peak per second", "offered per second", "stored, as a share of the peak (least to most)",
        "p99 of a refusal, ms", "p99 at half the load afterwards, ms",
    ]  # fmt: skip
    rows = []
    for name, found in counts.items():
        kind, _, text = name.partition(", ")
        if kind != "twice_the_capacity":
            continue
        rounds = {key: [each[key] for each in found["rounds"]] for key in found["rounds"][0]}
        shares = rounds["goodput_share_of_peak"]
        rows.append([
            text,
            f"{statistics.median(rounds['peak_requests_a_second']):,.0f}",
            f"{statistics.median(rounds['offered_requests_a_second']):,.0f}",
            f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})",
            _milliseconds(found["refused_p99_ms"]),
            _milliseconds(found["half_load_afterwards"]["p99_ms"]),
        ])  # fmt: skip
    stop = STOP_TEXT.format(**counts["stop"]) if "stop" in counts else ""
    return _after(GOODPUT_TEXT, columns, sorted(rows), stop)


def tenants(counts: Counts) -> str:
    """Return the section of a caller over its quota."""
    columns = [
        "brokers", "requests go to", "offered", "admitted", "p99 of the other caller without load, ms",
        "beside the quota, ms", "beside the load, ms", "its failed requests",
    ]  # fmt: skip
    prefix, rows = "tenant over its quota, ", []
    for name, found in counts.items():
        if not name.startswith(prefix):
            continue
        each = [found] if name == prefix + CONTROLLER_KILLED else found.values()
        rows.extend(map(_tenant_row, each))
    return TENANTS_TEXT + _after("\n", columns, sorted(rows, key=lambda row: int(row[0].split(",")[0])))


def _tenant_row(found: Counts) -> list[str]:
    brokers, through = found["brokers"], found["through"]
    after = found.get("seconds_after_kill_of_controller")
    return [
        str(brokers) if after is None else f"{brokers}, from {after:.0f} s after a kill of the controller",
        _target(brokers, through),
        f"{found['offered_share_of_limit']:.1f}",
        f"{found['admitted_share_of_limit']:.2f}",
        _milliseconds(found.get("quiet_p99_ms")),
        _milliseconds(found.get("at_limit_p99_ms")),
        _milliseconds(found.get("beside_p99_ms")),
        str(found.get("failures", "")),
    ]


def _target(brokers: int, through: int) -> str:
    if through == brokers:
        return "the broker" if brokers == 1 else "all of them"
    return "one of them" if through == 1 else f"{through} of them"


def _attack_columns() -> list[str]:
    return [
        "attack", "p99 of the other client before, ms", "during, ms", "its failed requests", "share of one processor",
        "memory of the broker before, MiB", "peak, MiB",
    ]  # fmt: skip


def _attack_rows(counts: Counts, prefix: str) -> list[list[str]]:
    return [
        [
            f"{found['count']:,} {text}",
            _milliseconds(found["quiet"]["p99_ms"]),
            _milliseconds(found["beside"]["p99_ms"]),
            str(found["beside"]["failures"]),
            f"{found['broker_cpu_share']:.0%}" if "broker_cpu_share" in found else "",
            *(f"{found[f'memory_{when}_mib']:,}" for when in ("before", "peak")),
        ]
        for name, text in ATTACKS.items()
        if (found := counts.get(prefix + name))
    ]


def _after(text: str, columns: Sequence[str], rows: Sequence[Sequence[str]], then: str = "") -> str:
    """Return a text, its table, and the text below it; nothing without a row."""
    return text + table(columns, rows) + then if rows else ""


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
