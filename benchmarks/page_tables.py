"""Tables of the page in Markdown, made of the parts of results files; called by `page.py`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from results import Results

REACHED = {True: "yes", False: "no", None: ""}


def cases_of(results: Results, file: str, parts: Sequence[str], command: str) -> list[dict[str, Any]]:
    """The cases of some parts that were measured, each with its command and day."""
    measured = {part: results.part(file, part) for part in parts}
    return [
        case | {"command": of_part(command, part), "day": found["day"]}
        for part, found in measured.items()
        if found
        for case in found["cases"]
    ]


def of_part(command: str, part: str) -> str:
    """The command that measures one part."""
    return f'{command} BENCH="{part}"'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows below a header."""
    lines = [f"| {' | '.join(line)} |" for line in (header, *rows)]
    return "\n".join((lines[0], f"|{'---|' * len(header)}", *lines[1:]))


def spread(values: Sequence[float], form: str) -> str:
    """A median with the least and the most, or the one value that there is."""
    middle, least, most = (format(each, form) for each in (median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})" if len(values) > 1 else middle


def ratios(cases: Sequence[dict[str, Any]]) -> str:
    """Cases against a peer."""
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
    """The seconds of a start against their limit."""
    milliseconds = next(case["fairlead"] for case in measured["cases"] if case["unit"] == "ms")
    row = (
        "start of the process to ready",
        f"{spread([each / 1000 for each in milliseconds], '.2f')} s",
        f"at most {measured['start_seconds_target']} s",
        REACHED[measured["start_reached"]],
        f"`{of_part('make bench', 'start')}`",
        measured["day"],
    )
    header = ("case", "Fairlead: median (min to max)", "target", "reached", "command", "measured")
    return table(header, [row])


def requests(measured: dict[str, Any]) -> str:
    """JSON over HTTP by promise and by records a request."""
    header = (
        *("durability", "records a request", "requests a second", "records a second"),
        *("CPU of the client a record", "of the broker", "command", "measured"),
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
                f"`{of_part('make bench', 'http')}`",
                measured["day"],
            )
        )
    return table(header, rows)


def triggers(measured: dict[str, Any]) -> str:
    """The milliseconds of a trigger, and how many more they are than with the rate source."""
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


def processor(parts: Mapping[str, dict[str, Any]], command: str) -> str:
    """Processor time a million records, a row for each side of each part; empty where there is none."""
    rows = [
        (part, side, f"{seconds:.2f} s", f"`{of_part(command, part)}`", measured["day"])
        for part, measured in parts.items()
        for side, seconds in measured["cpu_seconds_per_million"].items()
    ]
    header = ("part", "side", "CPU of a million records", "command", "measured")
    return table(header, rows) if rows else ""
