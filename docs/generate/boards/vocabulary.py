"""What a board is made of, and the labels by which its queries choose brokers.

A scraped broker bears `namespace`, `fairlead_cluster` and `broker` (see docs/how-to/observability.md); the operator's
PodMonitor puts them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLUSTER: Final = 'namespace=~"$namespace", fairlead_cluster=~"$cluster"'
"""Selects the series of the chosen cluster."""
BROKERS: Final = f'{CLUSTER}, broker=~"$broker"'
"""Selects the series of the chosen brokers."""
PER_SECOND: Final = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; `legend` names its series, `{{label}}` filled in."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Graphs over time, or with `stat` the last value alone, red from `bad_from` up or below `bad_below`."""

    title: str
    description: str
    unit: str
    """In Grafana's names: `short`, `bytes`, `Bps`, `s`, `ops`, `percentunit`, `cps`."""
    queries: tuple[Query, ...]
    stat: bool = False
    bad_from: float | None = None
    bad_below: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a board: values of a label."""

    name: str
    label: str
    query: str
    """`label_values(...)`."""
    several: bool = False
    """Whether more than one, and all, may be chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One board; `name` is that of its file."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The panels of all rows."""
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
    """Return a panel that shows one number, by default red from 1 up."""
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
    """Return a panel of lines; each query is an expression and its legend."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=tuple(Query(expression, legend) for expression, legend in queries),
    )


def quantiles(histogram: str, selector: str, *also_by: str) -> tuple[tuple[str, str], ...]:
    """Return the median, 95th and 99th percentile of a histogram, for each value of further labels."""
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
    """Return one percentile for each value of some labels."""
    names = " ".join(f"{{{{{label}}}}}" for label in by)
    labels = ", ".join(("le", *by))
    return (
        f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{selector}}}{PER_SECOND})))",
        names,
    )


def per_second(metric: str, selector: str, by: str, legend: str) -> tuple[str, str]:
    """Return how much a counter grows a second, for each value of labels."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}{PER_SECOND}))", legend
