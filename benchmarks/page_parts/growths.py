"""Tables and pictures of growing work, created from the parts of `scale.json`; called by `page.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from page_parts.tables import of_part, table

LIMIT_COLOUR, CURVE_COLOUR = "#b3261e", "#3d5a80"
PANEL_COLUMNS = 3


def growth(measured: dict[str, Any], part: str) -> str:
    """Return the table of a part, and a table with the limit that is met first."""
    steps, what = measured["steps"], measured["what"]
    names = list(steps[0]["figures"])
    rows = [(f"{step['count']:,}", *(_text(step["figures"][name]) for name in names)) for step in steps]
    return f"{table((what, *names), rows)}\n\n{_first_limit(measured, part)}"


def _first_limit(measured: dict[str, Any], part: str) -> str:
    limit, what = measured["first_limit"], measured["what"]
    last = f"{measured['steps'][-1]['count']:,}"
    if limit is None:
        row = ("none: no figure grows by a hundredth of its limit", "", "", "")
    else:
        used = f"{_text(limit['used'])} of {_text(limit['most'])}"
        row = (limit["figure"], used, f"{limit['count']:,}", limit["why"])
    header = (
        "first limit",
        f"used at {last}",
        f"{what} at the limit, in proportion",
        "reason",
        "command",
        "measured",
    )
    return table(header, [(*row, f"`{of_part('make bench-scale', part)}`", measured["day"])])


def _text(value: float) -> str:
    if value == round(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw_growth(measured: dict[str, Any], path: Path) -> None:
    """Draw one panel for each figure of a part."""
    mpl.rcParams.update({"svg.hashsalt": path.stem, "font.size": 9, "svg.fonttype": "none"})
    steps = measured["steps"]
    names = list(steps[0]["figures"])
    rows = -(-len(names) // PANEL_COLUMNS)
    figure, panels = plt.subplots(
        rows, PANEL_COLUMNS, figsize=(9, 2 * rows + 0.4), layout="constrained", squeeze=False
    )
    counts = [step["count"] for step in steps]
    limit = measured["first_limit"]
    for panel, name in zip(panels.flat, names, strict=False):
        is_limit = limit is not None and name == limit["figure"]
        values = [step["figures"][name] for step in steps]
        panel.plot(counts, values, "o-", color=LIMIT_COLOUR if is_limit else CURVE_COLOUR, markersize=4)
        panel.set_title(f"{name} (first limit)" if is_limit else name, fontsize=9)
        panel.set_xscale("log")
        panel.set_xticks(counts, [f"{count:,}" for count in counts])
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    figure.suptitle(f"As the number of {measured['what']} grows")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
