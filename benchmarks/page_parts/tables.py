"""Markdown tables of the page, created from the parts in results files without I/O; called by `page.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from page_parts.results import Results

REACHED = {True: "yes", False: "no", None: ""}
REQUEST_TARGETS = {
    "broker_cpu_us_per_record": "at most {} µs",
    "requests_per_second": "at least {:,} a second",
}
"""Description of each target of JSON over HTTP."""


def cases_of(results: Results, file: str, parts: Sequence[str], command: str) -> list[dict[str, Any]]:
    """Return the cases of the given parts that were measured, each with its command and day."""
    measured = {part: results.part(file, part) for part in parts}
    return [
        case | {"command": of_part(command, part), "day": found["day"]}
        for part, found in measured.items()
        if found
        for case in found.get("cases", [])
    ]


def outcomes(results: Results, file: str, parts: Sequence[str], command: str) -> str:
    """Return a table of the outcomes of the given parts that were measured; empty without outcomes."""
    rows = [
        (
            outcome["case"],
            outcome["measured"],
            outcome["target"],
            REACHED[outcome["reached"]],
            f"`{of_part(command, part)}`",
            measured["day"],
        )
        for part in parts
        if (measured := results.part(file, part)) is not None
        for outcome in measured.get("outcomes", [])
    ]
    header = ("case", "figures", "target", "reached", "command", "measured")
    return table(header, rows) if rows else ""


def of_part(command: str, part: str) -> str:
    """Return the command that measures one part."""
    return f'{command} BENCH="{part}"'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with a header and rows."""
    lines = [f"| {' | '.join(line)} |" for line in (header, *rows)]
    return "\n".join((lines[0], f"|{'---|' * len(header)}", *lines[1:]))


def spread(values: Sequence[float], form: str) -> str:
    """Return the median with minimum and maximum; a single value is returned without a range."""
    middle, least, most = (format(each, form) for each in (median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})" if len(values) > 1 else middle


def ratios(cases: Sequence[dict[str, Any]]) -> str:
    """Return a table of cases that were measured against a peer."""
    header = (
        *("case", "Fairlead", "peer", "ratio: median (min to max)", "target", "reached", "command"),
        "measured",
    )
    return table(
        header,
        (
            (
                case["case"],
                f"{median(case['fairlead']):,.0f} {case['unit']}",
                f"{median(case['kafka']):,.0f} {case['unit']}",
                spread(case["ratios"], ".2f"),
                "reported" if case["target"] is None else f"{case['direction']} {case['target']}x",
                REACHED[case["reached"]],
                f"`{case['command']}`",
                case["day"],
            )
            for case in cases
        ),
    )


def start(measured: dict[str, Any]) -> str:
    """Return a table with the times of a broker's start and of a command in seconds, and their limits."""
    milliseconds = next(case["fairlead"] for case in measured["cases"] if case["unit"] == "ms")
    cases = (
        ("start of the process to ready", "start", [each / 1000 for each in milliseconds]),
        ("`fairlead topic list`, start to end", "command", measured["command_seconds"]),
    )
    rows = (
        (
            case,
            f"{spread(seconds, '.2f')} s",
            f"at most {measured[f'{name}_seconds_target']} s",
            REACHED[measured[f"{name}_reached"]],
            f"`{of_part('make bench', 'start')}`",
            measured["day"],
        )
        for case, name, seconds in cases
    )
    header = ("case", "Fairlead: median (min to max)", "target", "reached", "command", "measured")
    return table(header, rows)


def requests(measured: dict[str, Any]) -> str:
    """Return a table of JSON over HTTP, by durability and by records per request."""
    header = (
        *("durability", "records per request", "requests per second", "records per second"),
        *("client CPU per record", "broker CPU per record", "an empty application", "target", "reached"),
        *("command", "measured"),
    )
    rows: list[tuple[str, ...]] = []
    for case in measured["cases"]:
        figures = {name: [run[name] for run in case["runs"]] for name in case["runs"][0]}
        rows.append(
            (
                f"`{case['durability']}`",
                str(case["batch"]),
                spread(figures["requests_per_second"], ",.0f"),
                spread(figures["records_per_second"], ",.0f"),
                f"{spread(figures['client_cpu_us_per_record'], ',.1f')} µs",
                f"{spread(figures['broker_cpu_us_per_record'], ',.1f')} µs",
                f"{spread(figures['empty_cpu_us_per_record'], ',.1f')} µs",
                ", ".join(REQUEST_TARGETS[name].format(limit) for name, limit in case["targets"].items())
                or "reported",
                REACHED[case["reached"]],
                f"`{of_part('make bench', 'http')}`",
                measured["day"],
            )
        )
    return table(header, rows)


def handshakes(measured: dict[str, Any]) -> str:
    """Return a table of handshakes per second, and of another producer's latency before and during the handshakes."""
    figures = {name: [run[name] for run in measured["handshakes"]] for name in measured["handshakes"][0]}
    row = (
        spread(figures["handshakes_per_second"], ",.0f"),
        f"{spread(figures['p99_before_ms'], '.1f')} ms",
        f"{spread(figures['p99_meanwhile_ms'], '.1f')} ms",
        f"`{of_part('make bench', 'secured')}`",
        measured["day"],
    )
    header = (
        "handshakes per second",
        "p99 of another producer before",
        "p99 meanwhile",
        "command",
        "measured",
    )
    return table(header, [row])


def triggers(measured: dict[str, Any]) -> str:
    """Return a table that compares the duration of a Spark trigger with that of Spark's rate source."""
    case = measured["cases"]
    row = (
        case["case"],
        f"{median(case['milliseconds']['fairlead']):.0f} ms",
        f"{median(case['milliseconds']['rate']):.0f} ms",
        f"{spread(case['more_than_rate'], '.0f')} ms",
        f"at most {case['target']} ms",
        REACHED[case["reached"]],
        f"`{of_part('make bench-spark', 'triggers')}`",
        measured["day"],
    )
    header = (
        *("case", "Fairlead", "rate source", "more: median (min to max)", "target", "reached", "command"),
        "measured",
    )
    return table(header, [row])


def decisions(measured: dict[str, Any]) -> str:
    """Return a table of the transactions that producers commit per second, and of the commit latencies."""
    header = (
        *("producers", "committed per second", "p50", "p99", "writes of the store per second"),
        *("cores of the broker", "refused", "target", "reached", "command", "measured"),
    )
    rows: list[tuple[str, ...]] = []
    for case in measured["cases"]:
        figures = {name: [run[name] for run in case["runs"]] for name in case["runs"][0]}
        requested = case["producers"] * measured["commits_a_second"]
        is_reached = (
            median(figures["decisions_per_second"]) >= requested * measured["share_target"]
            and median(figures["p99"]) <= measured["p99_ms_target"] * 1000
            and not any(figures["refused"])
        )
        rows.append(
            (
                f"{case['producers']:,}",
                spread(figures["decisions_per_second"], ",.0f"),
                *(f"{spread([each / 1000 for each in figures[name]], ',.1f')} ms" for name in ("p50", "p99")),
                spread(figures["writes_per_second"], ",.0f"),
                spread(figures["broker_cores"], ".2f"),
                f"{sum(figures['refused']):,}",
                f"{requested:,.0f} a second, p99 at most {measured['p99_ms_target']} ms",
                REACHED[is_reached],
                f"`{of_part('make bench', 'decisions')}`",
                measured["day"],
            )
        )
    return table(header, rows)


def processor(parts: Mapping[str, dict[str, Any]], command: str) -> str:
    """Return a table of processor time per million records for each side of each part; empty without results."""
    rows = [
        (part, side, f"{seconds:.2f} s", f"`{of_part(command, part)}`", measured["day"])
        for part, measured in parts.items()
        for side, seconds in measured["cpu_seconds_per_million"].items()
    ]
    header = ("part", "side", "CPU per million records", "command", "measured")
    return table(header, rows) if rows else ""
