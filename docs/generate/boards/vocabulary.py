"""Parts of a board, and the labels by which queries select brokers.

The series of a scraped broker have the labels `namespace`, `fairlead_cluster` and `broker` (see
docs/how-to/observability.md), which the operator's PodMonitor adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLUSTER: Final = 'namespace=~"$namespace", fairlead_cluster=~"$cluster"'
"""Label selector for the series of the chosen cluster."""
BROKERS: Final = f'{CLUSTER}, broker=~"$broker"'
"""Label selector for the series of the chosen brokers."""
PER_SECOND: Final = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """One query expression; `legend` names its series and may contain `{{label}}`."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Panel with graphs over time or, with `stat`, only the last value, red from `bad_from` up or below `bad_below`."""

    title: str
    description: str
    unit: str
    """Unit of the values under its name in Grafana: `short`, `bytes`, `Bps`, `s`, `ops`, `percentunit` or `cps`."""
    queries: tuple[Query, ...]
    stat: bool = False
    bad_from: float | None = None
    bad_below: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Row of panels with a common title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Variable whose value users choose at the top of a board, from the values of a label."""

    name: str
    label: str
    query: str
    """Query in Grafana's form `label_values(...)`, whose results users choose from."""
    several: bool = False
    """Whether users may choose several values or all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One board; `name` is the name of its file."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The panels of all rows of the board."""
        return tuple(panel for row in self.rows for panel in row.panels)


NAMESPACE: Final = Variable(
    name="namespace", label="Namespace", query="label_values(fairlead_build_info, namespace)"
)
CLUSTER_NAME: Final = Variable(
    name="cluster",
    label="Cluster",
    query='label_values(fairlead_build_info{namespace=~"$namespace"}, fairlead_cluster)',
)
BROKER: Final = Variable(
    name="broker",
    label="Broker",
    query=f"label_values(fairlead_build_info{{{CLUSTER}}}, broker)",
    several=True,
)


def number(title: str, description: str, expression: str, *, unit: str = "short", bad_from: float | None = 1.0,
           bad_below: float | None = None) -> Panel:  # fmt: skip
    """Return a panel that shows one number, which is red at 1 or more by default."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=(Query(expression, title),),
        stat=True,
        bad_from=bad_from,
        bad_below=bad_below,
    )


def graph(title: str, description: str, unit: str, *queries: tuple[str, str]) -> Panel:
    """Return a panel with line graphs; each query is a pair of expression and legend."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=tuple(Query(expression, legend) for expression, legend in queries),
    )


def quantiles(histogram: str, selector: str, *also_by: str) -> tuple[tuple[str, str], ...]:
    """Return queries for the median, 95th and 99th percentile of a histogram, for each value of additional labels."""
    by = ", ".join(("le", *also_by))
    names = "".join(f"{{{{{label}}}}} " for label in also_by)
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket{{{selector}}}{PER_SECOND})))",
            f"{names}{word}",
        )
        for share, word in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
    )


def quantile(share: float, histogram: str, selector: str, *by: str) -> tuple[str, str]:
    """Return the query for one percentile of a histogram, for each value of the given labels."""
    names = " ".join(f"{{{{{label}}}}}" for label in by)
    labels = ", ".join(("le", *by))
    return (
        f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{selector}}}{PER_SECOND})))",
        names,
    )


def per_second(metric: str, selector: str, by: str, legend: str) -> tuple[str, str]:
    """Return the query for the growth per second of a counter, for each value of the given labels."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}{PER_SECOND}))", legend
