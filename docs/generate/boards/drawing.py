"""Conversion of boards to Grafana's JSON.

No other module uses Grafana's library. The module also decides the sizes and places of panels: a row has six numbers or
two graphs.
"""

from __future__ import annotations

import json
from typing import Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from boards.vocabulary import Board, Panel, Query, Variable

SOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Data source of all panels: a variable with which users choose a Prometheus."""
STAT_WIDTH, STAT_HEIGHT = 4, 4
GRAPH_WIDTH, GRAPH_HEIGHT = 12, 8
GOOD, BAD = "green", "red"


def text_of(board: Board) -> str:
    """Return a board as Grafana's JSON text."""
    builder = (
        dashboard_builders.Dashboard(board.title)
        .uid(f"fairlead-{board.name}")
        .description(board.description)
        .tags(["fairlead"])
        .editable()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .timezone("browser")
        .refresh("30s")
        .with_variable(
            dashboard_builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .link(
            dashboard_builders.DashboardLink("Fairlead")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["fairlead"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
    )
    for variable in board.variables:
        builder.with_variable(_variable(variable))
    for row in board.rows:
        builder.with_row(dashboard_builders.Row(row.title))
        for panel in row.panels:
            builder.with_panel(_number(panel) if panel.stat else _graph(panel))
    drawn = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    for number, panel in enumerate(drawn["panels"], start=1):
        panel["id"] = number
    return json.dumps(drawn, indent=2, sort_keys=True) + "\n"


def _variable(variable: Variable) -> dashboard_builders.QueryVariable:
    builder = (
        dashboard_builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": f"variable-{variable.name}"})
        .definition(variable.query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.several:
        every = dashboard.VariableOption(text="All", value="$__all", selected=True)
        builder.multi(True).include_all(True).all_value(".*").current(every)
    return builder


def _number(panel: Panel) -> stat.Panel:
    builder = (
        stat.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(STAT_WIDTH)
        .height(STAT_HEIGHT)
        .graph_mode(common.BigValueGraphMode.AREA)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(
            dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(_steps(panel))
        )
    )
    for at, query in enumerate(panel.queries):
        builder.with_target(_target(query, at))
    return builder


def _graph(panel: Panel) -> timeseries.Panel:
    builder = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(GRAPH_WIDTH)
        .height(GRAPH_HEIGHT)
        .line_width(1)
        .fill_opacity(8)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if not panel.unit.startswith("dateTime"):
        builder.min(0)
    for at, query in enumerate(panel.queries):
        builder.with_target(_target(query, at))
    return builder


def _steps(panel: Panel) -> list[dashboard.Threshold]:
    if panel.bad_below is not None:
        steps = [
            dashboard.Threshold(value=None, color=BAD),
            dashboard.Threshold(value=panel.bad_below, color=GOOD),
        ]
    else:
        steps = [dashboard.Threshold(value=None, color=GOOD)]
    if panel.bad_from is not None:
        steps.append(dashboard.Threshold(value=panel.bad_from, color=BAD))
    return steps


def _target(query: Query, at: int) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .expr(query.expression)
        .legend_format(query.legend)
        .datasource(SOURCE)
        .range()
        .ref_id(chr(ord("A") + at))
    )
