"""Tests of the rules for boards: those of Grafana's linter, which is not available here, and rules of this project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from expressions import bare_counters, gauges_under_rate, metrics_of
from monitored_cluster import CHOSEN
from rule_files import BOARDS_WRITER, boards, panels, rules

GOLDEN = Path(__file__).with_name("boards.yaml")
BOARDS = boards()
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in panels(board)
]


def test_names_and_queries_are_the_known_ones() -> None:
    """Panels, units and queries of every board equal those of the golden file; `UPDATE_GOLDEN=1` writes the file."""
    found = {
        name: [
            {
                "title": panel["title"],
                "unit": panel["fieldConfig"]["defaults"]["unit"],
                "queries": [target["expr"] for target in panel["targets"]],
            }
            for panel in panels(board)
        ]
        for name, board in BOARDS.items()
    }
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump(found, sort_keys=True, width=1000), encoding="utf-8")

    assert found == yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))


def test_a_board_that_differs_lacks_or_should_not_exist_is_mended(tmp_path: Path) -> None:
    """The writer rewrites a changed board, restores a missing board, and deletes a board that the code lacks."""
    command = [sys.executable, str(BOARDS_WRITER), "--into", str(tmp_path)]
    subprocess.run(command, check=True)
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    (tmp_path / "fairlead-topics.json").write_text("{}")
    (tmp_path / "fairlead-groups.json").unlink()
    (tmp_path / "fairlead-old.json").write_text("{}")
    subprocess.run(command, check=True)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == first
    assert set(first) == {f"{name}.json" for name in BOARDS}


def test_there_are_six_boards_with_names_of_their_own() -> None:
    """The six boards (cluster, brokers, topics, groups, operator and Spark jobs) have unique identifiers and titles."""
    assert set(BOARDS) == {
        f"fairlead-{name}" for name in ("cluster", "brokers", "topics", "groups", "operator", "spark")
    }
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)
    assert all(board["uid"] == name and board["description"] for name, board in BOARDS.items())


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_variable_is_used_and_every_used_one_is_there(name: str) -> None:
    """The data source is the first variable.

    Every variable in a query belongs to the board, and the tests have a value for it.
    """
    board = BOARDS[name]
    first, *others = board["templating"]["list"]
    variables = {variable["name"] for variable in others}
    text = " ".join(target["expr"] for panel in panels(board) for target in panel["targets"])
    text += " ".join(variable["query"]["query"] for variable in others)
    used = set(re.findall(r"\$([a-z_]+)", text)) - {"__rate_interval"}

    assert (first["type"], first["name"], first["query"]) == ("datasource", "datasource", "prometheus")
    assert all(variable["datasource"] == SOURCE and variable["label"] for variable in others)
    assert used == variables
    assert {f"${name}" for name in variables} <= set(CHOSEN)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_titles_are_unique_in_a_board(name: str) -> None:
    """No two panels of a board have the same title."""
    titles = Counter(panel["title"] for panel in panels(BOARDS[name]))

    assert [title for title, count in titles.items() if count > 1] == []


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_panels_lie_beside_each_other(name: str) -> None:
    """Panels do not overlap, fit the width of the board, and have unique numbers."""
    every = BOARDS[name]["panels"]
    places: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not places & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells
    assert len({panel["id"] for panel in every}) == len(every)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """Every panel has a description, a unit, at least one query, and a legend for each query."""
    assert re.fullmatch(r"[A-Z].*[a-z0-9`%.]", panel["description"])
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == SOURCE
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        assert target["datasource"] == SOURCE
        assert target["legendFormat"]


@pytest.mark.parametrize("panel", PANELS)
def test_queries_keep_the_rules(panel: dict[str, Any]) -> None:
    """Queries select the namespace, use Grafana's interval, and compute rates of counters but not of gauges."""
    for target in panel["targets"]:
        expression = target["expr"]
        for selector in re.findall(r"\{[^}]*\}", expression):
            assert re.search(r'namespace=~"\$(job_)?namespace"', selector), expression
        assert set(re.findall(r"\[([^\]]*)\]", expression)) <= {"$__rate_interval"}
        assert bare_counters(expression) == set()
        assert gauges_under_rate(expression) == set()
        assert metrics_of(expression) or "__name__" in expression


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_count_with_counters_alone(rule: dict[str, Any]) -> None:
    """Recorded series and alerts use rates and increases of counters but not of gauges."""
    assert bare_counters(rule["expr"]) == set()
    assert gauges_under_rate(rule["expr"]) == set()


def test_expressions_are_taken_apart_as_they_should_be() -> None:
    """The functions behind the tests of rules detect invalid expressions."""
    wrong = 'sum by (fairlead_cluster) (fairlead_records_total{topic="fairlead_x"}) + rate(fairlead_held_bytes[5m])'

    assert metrics_of(wrong) == {"fairlead_records_total", "fairlead_held_bytes"}
    assert bare_counters(wrong) == {"fairlead_records_total"}
    assert gauges_under_rate(wrong) == {"fairlead_held_bytes"}
    assert bare_counters("rate(fairlead_records_total[5m])") == set()
