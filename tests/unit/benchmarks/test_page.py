"""The page of benchmarks is filled with measured results, and results of trial runs are left out."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import checkout

pytestmark = pytest.mark.slow
PROGRAM = checkout.ROOT / "benchmarks/page.py"
PAGE = checkout.ROOT / "docs/benchmarks.md"
ASKED = {"records": 5_000_000, "pairs": 3, "rounds": 3, "triggers": 60}
USED = {"cpu_seconds_per_million": {"a side": 1.25}}
TRIES = ({"pairs": 2}, {"rounds": 1}, {"records": 12_000}, {"triggers": 5})
DAY = "2031-05-07"
COMMANDS = {
    "make bench": "bench.json",
    "make bench-spark": "spark.json",
    "make bench-latency": "latency.json",
    "make bench-cluster": "cluster.json",
    "make bench-groups": "groups.json",
    "make bench-console": "console.json",
}
GROWTHS = ("partitions", "connections", "groups", "producers", "size", "brokers")


def ratio(case: str, unit: str = "records/s") -> dict[str, Any]:
    """Return a case of three rounds at twice the peer's rate, in the form that `pairing.py` writes."""
    return {
        "case": case,
        "unit": unit,
        "fairlead": [2000.0, 4000.0, 6000.0],
        "kafka": [1000.0, 2000.0, 3000.0],
        "ratios": [2.0, 2.0, 2.0],
        "ratio_median": 2.0,
        "target": 3.0,
        "direction": "at least",
        "reached": False,
    }


def measured(**more: Any) -> dict[str, Any]:
    """Return a part of a results file."""
    return {"day": DAY, "asked": ASKED, **more}


def compared(part: str, **more: Any) -> dict[str, Any]:
    """Return a part with one case against a peer, named after the part."""
    return measured(cases=[ratio(f"case of {part}")], **more)


def bench_parts() -> dict[str, Any]:
    """Return results of every part of `make bench`."""
    runs = [
        {
            "requests_per_second": rate,
            "records_per_second": rate,
            "client_cpu_us_per_record": 180.25,
            "broker_cpu_us_per_record": 1000.0,
            "empty_cpu_us_per_record": 50.0,
        }
        for rate in (4100.0, 4200.0, 4300.0)
    ]
    bench = {part: compared(part) for part in ("throughput", "kilobyte", "nats", "compression")}
    bench |= {part: compared(part, **USED) for part in ("send", "consume")}
    bench["http"] = measured(
        cases=[
            {
                "durability": "synced",
                "batch": 100,
                "runs": runs,
                "targets": {"broker_cpu_us_per_record": 900, "requests_per_second": 4000},
                "reached": False,
            }
        ]
    )
    heartbeat = {"case": "a heartbeat", "measured": "45 µs", "target": "at most 80 µs", "reached": True}
    bench["heartbeats"] = measured(outcomes=[heartbeat])
    bench["start"] = measured(
        cases=[ratio("case of start", "ms")],
        start_seconds=4.0, start_seconds_target=0.9, start_reached=False,
        command_seconds=[0.2, 0.3], command_seconds_target=0.35, command_reached=True,
    )  # fmt: skip
    shaken = [
        {"handshakes_per_second": rate, "p99_before_ms": 2.0, "p99_meanwhile_ms": 9.0}
        for rate in (700.0, 710.0)
    ]
    bench["secured"] = compared("secured", handshakes=shaken)
    bench |= {part: compared(part) for part in ("transactions", "transform", "isolation")}
    bench |= {part: compared(part) for part in ("cleaning", "cleaning-large", "rebuild", "cleaning-latency")}
    bench |= {part: compared(part) for part in ("kafka-throughput", "kafka-waiting")}
    decided = {"decisions_per_second": 9.9, "p50": 4_000.0, "p99": 20_000.0, "refused": 0}
    bench["decisions"] = measured(
        cases=[{"producers": 1, "runs": [decided | {"writes_per_second": 9.9, "broker_cores": 0.05}]}],
        commits_a_second=10.0, share_target=0.95, p99_ms_target=500,
    )  # fmt: skip
    return bench


def documents() -> dict[str, dict[str, Any]]:
    """Return results of every part, in the form that `make bench` and `make bench-spark` write."""
    spark = {part: compared(part, **USED) for part in ("read", "windows", "write", "write-files")}
    spark["triggers"] = measured(
        cases={
            "case": "case of triggers",
            "milliseconds": {"fairlead": [150.0, 160.0, 170.0], "rate": [130.0, 130.0, 130.0]},
            "more_than_rate": [20.0, 30.0, 40.0],
            "target": 60,
            "reached": True,
        }
    )
    return {
        "bench.json": bench_parts(),
        "revisions.json": {"revisions": compared("revisions")},
        "spark.json": spark,
        "scale.json": {part: grown(part) for part in GROWTHS},
        **documents_of_clusters(),
    }


def grown(part: str) -> dict[str, Any]:
    """Return a part of growing work, in the form that `scale_parts/growth.py` returns."""
    limit = {"figure": "open files", "used": 100, "most": 400.0, "count": 4_000, "why": f"Reason of {part}."}
    steps = [
        {"count": count, "figures": {"open files": files}} for count, files in ((1, 1), (9, 2), (1_000, 100))
    ]
    outcome = {"case": f"case of {part}", "measured": "2x", "target": "reported", "reached": None}
    known = None if part == "producers" else limit
    return measured(what=f"{part} of a broker", steps=steps, first_limit=known, outcomes=[outcome])


def documents_of_clusters() -> dict[str, dict[str, Any]]:
    """Return results of every part that has rows without a peer, by results file."""
    outcome = {"case": "case alone", "measured": "p50 2 ms", "target": "at most 3 ms", "reached": True}
    alone = measured(outcomes=[outcome])
    cluster = {
        part: compared(part)
        for part in ("throughput", "slow-follower", "quorum-throughput", "link-throughput")
    }
    return {
        "latency.json": {"paced": compared("paced")}
        | dict.fromkeys(("partitions", "bursts", "steady", "large"), alone),
        "cluster.json": cluster
        | dict.fromkeys(("failover", "cut", "moves", "rolling", "partitions", "quorum-failover"), alone)
        | dict.fromkeys(("link-lag", "link-hand-overs"), alone),
        "groups.json": dict.fromkeys(("join", "member", "coordinator", "scale"), alone),
        "console.json": dict.fromkeys(("pages", "paint", "memory", "search", "tail"), alone),
    }


def page_of(results: dict[str, dict[str, Any]], folder: Path) -> tuple[str, str]:
    """Write the page from results, and return the page and the printed output."""
    for name, document in results.items():
        (folder / name).write_text(json.dumps(document))
    page = folder / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    arguments = [
        str(PROGRAM),
        "--cache",
        str(folder),
        "--page",
        str(page),
        "--figures",
        str(folder / "figures"),
    ]
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(sys, "argv", arguments)
        patch.syspath_prepend(str(PROGRAM.parent))
        runpy.run_path(str(PROGRAM), run_name="__main__")
    return page.read_text(encoding="utf-8"), said.getvalue()


def test_every_part_is_on_the_page(tmp_path: Path) -> None:
    """Each row has the command and the date of its measurement, and every section that needs a picture has one."""
    page, said = page_of(documents(), tmp_path)

    for command, file in COMMANDS.items():
        for part in documents()[file]:
            assert f'`{command} BENCH="{part}"` | {DAY} |' in page, part
    assert "| start of the process to ready | 4.00 (2.00 to 6.00) s | at most 0.9 s | no |" in page
    assert "| `fairlead topic list`, start to end | 0.25 (0.20 to 0.30) s | at most 0.35 s | yes |" in page
    assert (
        "| `synced` | 100 | 4,200 (4,100 to 4,300) | 4,200 (4,100 to 4,300) | 180.2 (180.2 to 180.2) µs |"
        " 1,000.0 (1,000.0 to 1,000.0) µs | 50.0 (50.0 to 50.0) µs | at most 900 µs, at least 4,000 a second | no |"
        in page
    )
    assert page.count("| case alone | p50 2 ms | at most 3 ms | yes |") == 21
    assert "| case of triggers | 160 ms | 130 ms | 30 (20 to 40) ms | at most 60 ms | yes |" in page
    assert "| consume | a side | 1.25 s |" in page
    assert "| 705 (700 to 710) | 2.0 (2.0 to 2.0) ms | 9.0 (9.0 to 9.0) ms |" in page
    assert "| 1 | 10 | 4.0 ms | 20.0 ms | 10 | 0.05 | 0 | 10 a second, p99 at most 500 ms | yes |" in page
    for part in GROWTHS:
        assert (
            f"| {part} of a broker | open files |\n|---|---|\n| 1 | 1 |\n| 9 | 2 |\n| 1,000 | 100 |" in page
        )
        first = "none: no figure grows by a hundredth of its limit |  |  | "
        if part != "producers":
            first = f"open files | 100 of 400 | 4,000 | Reason of {part}."
        assert f'| {first} | `make bench-scale BENCH="{part}"` | {DAY} |' in page
    assert {path.stem for path in (tmp_path / "figures").glob("*.svg")} == {
        *("throughput", "start", "clients", "compression", "http", "secured", "transactions", "compaction"),
        *("kafka-listener", "revisions", "spark", "latency", "cluster", "quorum", "links"),
        *(f"scale-{part}" for part in GROWTHS),
    }
    assert "left out" not in said


def test_what_was_only_tried_is_left_out(tmp_path: Path) -> None:
    """Results with too few records, rounds or triggers are reported and leave the page unchanged."""
    results = documents()
    parts = [part for document in results.values() for part in document.values()]
    for part, asked in zip(parts, itertools.cycle(TRIES), strict=False):
        part["asked"] = ASKED | asked
    page, said = page_of(results, tmp_path)

    assert page == PAGE.read_text(encoding="utf-8")
    assert said.count("left out") == len(parts)


def test_results_that_do_not_say_what_was_asked_for_are_left_out(tmp_path: Path) -> None:
    """A part with incomplete results is omitted from the page, and the other parts of its section are written."""
    parts = documents()["bench.json"]
    del parts["kilobyte"]["asked"]
    page, said = page_of({"bench.json": {name: parts[name] for name in ("throughput", "kilobyte")}}, tmp_path)

    assert "case of throughput" in page
    assert "case of kilobyte" not in page
    assert "bench.json, kilobyte: left out, the results do not state the requested counts\n" in said


def test_what_was_measured_elsewhere_stays(tmp_path: Path) -> None:
    """A part that is measured again replaces only its own rows; the other rows of the page stay unchanged."""
    parts = documents()["bench.json"]
    first, _ = page_of({"bench.json": {name: parts[name] for name in ("consume", "nats")}}, tmp_path)
    again = compared("consume", cpu_seconds_per_million={"a side": 0.5}) | {"day": "2032-01-01"}
    again["cases"][0]["ratios"] = [4.0, 5.0, 6.0]
    page, said = page_of({"bench.json": {"consume": again}}, tmp_path)

    old, new = set(first.splitlines()), set(page.splitlines())
    assert len(old - new) == len(new - old) == 2
    assert all('BENCH="consume"` | 2032-01-01 |' in line for line in new - old)
    assert f"bench.json, nats: left out, not measured yet; the result of {DAY} is kept" in said
