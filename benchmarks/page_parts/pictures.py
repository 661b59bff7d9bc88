"""Draws the pictures of the page from the parts in results files; called by `page.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

COLOURS = {True: "#1b7f4d", False: "#b3261e", None: "#3d5a80"}


def draw_ratios(title: str, cases: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw one line for each case: the median ratio, its spread, and the target."""
    mpl.rcParams.update({"svg.hashsalt": path.stem, "font.size": 9, "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.36 * len(cases)), layout="constrained")
    for row, case in enumerate(reversed(cases)):
        ratios = case["ratios"]
        colour = COLOURS[case["reached"]]
        axes.hlines(row, min(ratios), max(ratios), color=colour, alpha=0.5, linewidth=4)
        axes.plot(case["ratio_median"], row, "o", color=colour)
        if case["target"]:
            axes.plot(case["target"], row, "|", color="black", markersize=14, markeredgewidth=2)
    axes.set_yticks(range(len(cases)), [case["case"].replace("`", "") for case in reversed(cases)])
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("Fairlead / peer (dot: median, band: rounds, mark: target)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title(title)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_requests(cases: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw one line for each case: medians and spreads of requests per second and records per second."""
    mpl.rcParams.update({"svg.hashsalt": path.stem, "font.size": 9, "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.36 * len(cases)), layout="constrained")
    for name, label, colour in (
        ("requests_per_second", "requests", "#3d5a80"),
        ("records_per_second", "records", "#1b7f4d"),
    ):
        for row, case in enumerate(reversed(cases)):
            values = [run[name] for run in case["runs"]]
            axes.hlines(row, min(values), max(values), color=colour, alpha=0.5, linewidth=4)
            axes.plot(median(values), row, "o", color=colour, label=None if row else label)
    names = [f"{case['durability']}, {case['batch']} a request" for case in reversed(cases)]
    axes.set_yticks(range(len(cases)), names)
    axes.set_xscale("log")
    axes.set_xlabel("per second (dot: median, band: rounds)")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.legend()
    axes.set_title("JSON over HTTP")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
