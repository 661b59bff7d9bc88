"""Draw the Grafana boards with the data of running programs, by sending their queries to a real Prometheus.

    python docs/generate/board_pictures.py [--seconds 90] [--into DIRECTORY] [brokers] [spark] [operator]

The program writes one SVG for each board. The data comes from three brokers under load, from a Spark job that reads
from three brokers (needs Java), and from an operator on the control plane that tests use (needs Go and root). Tests do
not compare the pictures, since the numbers differ in every run. The program fails if titles, legends or graphs of a
picture overlap.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    *(
        str(ROOT / "tests" / folder)
        for folder in ("observability", "etcd", "plugins", "plugins/programs", "spark")
    ),
    *(str(ROOT / "tests/kubernetes" / folder) for folder in ("box", "stages")),
]

from kubernetes_under_test import shared  # noqa: E402 - found by the line above
from monitored_cluster import (  # noqa: E402
    Prometheus,
    filled_in,
    load_on,
    running_brokers,
    running_etcd,
    running_prometheus,
)
from monitored_job import job_targets, running_job  # noqa: E402
from monitored_operator import CLUSTER, monitored_operator, topic  # noqa: E402
from operator_process import Operators, install_definitions  # noqa: E402
from rule_files import boards  # noqa: E402

mpl.use("svg")
# Text is stored as text, so that the files are ten times smaller and can be searched.
mpl.rcParams.update({"svg.fonttype": "none", "font.size": 7, "svg.hashsalt": "fairlead"})

from matplotlib import pyplot as plt  # noqa: E402 - after the choice above
from matplotlib.transforms import ScaledTranslation  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.transforms import BboxBase

CHART = ROOT / "charts/fairlead-operator"
RULES = sorted((CHART / "rules").glob("*.yaml"))
STEP_SECONDS = 3
COLUMNS = 3
LEGENDS_MAX = 6
LEGEND_CHARACTERS = 48
TITLE_CHARACTERS = 42
HEIGHT_INCHES = 2.3
LEGEND_BELOW_INCHES = 0.22
"""Distance of a legend from its graph, with room for the numbers of the axis."""
UNITS = {
    "bytes": "bytes",
    "Bps": "bytes/s",
    "s": "s",
    "cps": "1/s",
    "reqps": "requests/s",
    "percentunit": "share",
    "ms": "ms",
    "dateTimeAsIso": "s after the start",
}
TOPIC_SECONDS = 4.0
"""Interval at which another Topic is created for the operator."""


@contextmanager
def brokers_under_load(folder: Path) -> Iterator[Prometheus]:
    """Run three brokers with a producer and two consumer groups."""
    with (
        running_brokers(folder) as brokers,
        running_etcd(folder) as etcd,
        load_on(brokers.bootstrap),
        running_prometheus(folder, [*brokers.targets, *etcd], RULES) as prometheus,
    ):
        yield prometheus


@contextmanager
def job_under_load(folder: Path) -> Iterator[Prometheus]:
    """Run three brokers under load, and a Spark query that counts records in windows."""
    with (
        running_brokers(folder) as brokers,
        load_on(brokers.bootstrap),
        running_job(brokers.bootstrap, folder) as port,
        running_prometheus(folder, [*brokers.targets, *job_targets(port)], RULES) as prometheus,
    ):
        yield prometheus


@contextmanager
def operator_at_work(folder: Path) -> Iterator[Prometheus]:
    """Run an operator for a Cluster whose brokers do not answer, and create one Topic after another."""
    with shared(f"pictures-{os.getpid()}") as kubernetes:
        install_definitions(kubernetes)
        namespace = kubernetes.namespace()
        operators = Operators(kubernetes, folder)
        ended = threading.Event()

        def apply() -> None:
            kubernetes.api.apply(CLUSTER, namespace)
            for number in itertools.count():
                if ended.wait(TOPIC_SECONDS):
                    return
                kubernetes.api.apply(topic(f"orders-{number}"), namespace)

        applying = threading.Thread(target=apply)
        try:
            with monitored_operator(operators, namespace, folder, RULES) as (_, prometheus):
                applying.start()
                yield prometheus
        finally:
            ended.set()
            if applying.ident is not None:
                applying.join()
            operators.stop_all()


@dataclass(frozen=True, slots=True)
class Stage:
    """Programs that are run to draw some of the boards."""

    boards: tuple[str, ...]
    title: str
    running: Callable[[Path], AbstractContextManager[Prometheus]]


STAGES = {
    "brokers": Stage(
        ("cluster", "brokers", "topics", "groups"), "three brokers under load", brokers_under_load
    ),
    "spark": Stage(("spark",), "a query that counts the records of three brokers", job_under_load),
    "operator": Stage(
        ("operator",),
        "Topics that are created one after the other, for a Cluster without brokers",
        operator_at_work,
    ),
}


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("stages", nargs="*", help=f"stages to run, of {', '.join(STAGES)}; default: all")
    parser.add_argument(
        "--seconds", type=int, default=90, help="seconds of load before the pictures are drawn"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "docs/how-to/boards")
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    for name in options.stages or STAGES:
        stage = STAGES[name]
        with (
            tempfile.TemporaryDirectory(prefix="fairlead-boards-") as folder,
            stage.running(Path(folder)) as prometheus,
        ):
            threading.Event().wait(options.seconds)
            end = time.time()
            for board in stage.boards:
                source = boards()[f"fairlead-{board}"]
                figure = draw(source, stage.title, prometheus, (end - options.seconds, end))
                assert not (found := overlaps(figure)), f"parts of the board {board} overlap: {found}"
                figure.savefig(options.into / f"fairlead-{board}.svg", metadata={"Date": None})
                plt.close(figure)
    return 0


def draw(board: dict[str, Any], about: str, prometheus: Prometheus, span: tuple[float, float]) -> Figure:
    """Draw the panels of a board as a grid of small graphs."""
    begin, end = span
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    rows = math.ceil(len(panels) / COLUMNS)
    # This layout makes room for titles of several lines and for legends below the graphs.
    size = (11, HEIGHT_INCHES * rows)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        axis.set_visible(True)
        unit = panel["fieldConfig"]["defaults"]["unit"]
        lines = 0
        for target in panel["targets"]:
            answer = prometheus.ask(
                "query_range",
                query=filled_in(target["expr"]),
                start=str(begin),
                end=str(end),
                step=str(STEP_SECONDS),
            )
            for series in answer["result"]:
                times = [at - begin for at, _ in series["values"]]
                values = [float(value) for _, value in series["values"]]
                if unit == "dateTimeAsIso":
                    values = [value / 1000 - begin if value else math.nan for value in values]
                lines += 1
                label = legend(target["legendFormat"], series["metric"]) if lines <= LEGENDS_MAX else None
                axis.plot(times, values, linewidth=0.9, label=label)
        title = f"{panel['title']}{f' [{UNITS[unit]}]' if unit in UNITS else ''}"
        axis.set_title(textwrap.fill(title, TITLE_CHARACTERS), fontsize=8, loc="left")
        if unit != "dateTimeAsIso":
            axis.set_ylim(bottom=0)
        axis.set_xlim(0, end - begin)
        axis.grid(visible=True, linewidth=0.3)
        labels = axis.get_legend_handles_labels()[1]
        if panel["type"] != "stat" and labels:
            below = axis.transAxes + ScaledTranslation(0, -LEGEND_BELOW_INCHES, figure.dpi_scale_trans)
            place = {
                "loc": "upper left",
                "bbox_to_anchor": (0, 0),
                "bbox_transform": below,
                "borderaxespad": 0,
            }
            # Two columns of long labels would be wider than the graph, and would widen the graph's column too.
            longest = max(map(len, labels))
            columns = 1 if longest > LEGEND_CHARACTERS // 2 else 2
            axis.legend(fontsize=5, frameon=False, ncols=columns, **place)
    figure.suptitle(f"{board['title']}: {about}, {end - begin:.0f} seconds", fontsize=10)
    return figure


def overlaps(figure: Figure) -> list[str]:
    """Return the titles of panels whose legend covers the graph, and of pairs of panels that overlap."""
    figure.draw_without_rendering()
    shown = [axis for axis in figure.axes if axis.get_visible()]
    covered = [
        axis.get_title("left")
        for axis in shown
        if (names := axis.get_legend()) is not None
        and (names.get_window_extent().overlaps(axis.bbox) or extent(names).overlaps(extent(axis.xaxis)))
    ]
    beside = [
        f"{one.get_title('left')} and {other.get_title('left')}"
        for one, other in itertools.combinations(shown, 2)
        if extent(one).overlaps(extent(other))
    ]
    return covered + beside


def extent(artist: Artist) -> BboxBase:
    """Return the rectangle that a drawn part of a picture covers."""
    box = artist.get_tightbbox()
    assert box is not None, "the part is drawn"
    return box


def legend(pattern: str, labels: dict[str, str]) -> str:
    """Replace the labels in a legend with their values, as Grafana does."""
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), pattern)
    return textwrap.shorten(text, LEGEND_CHARACTERS, placeholder="...")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
