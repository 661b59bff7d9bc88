"""Tests of alerts: they fire and stay silent as expected, and are documented."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from alert_cases import CASES
from alert_series import Case
from rule_files import ALERTS_PAGE, RULE_FILES, alerts, rules

SEVERITIES = {"critical", "warning", "info"}


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)


def as_promtool_reads(case: Case) -> dict[str, object]:
    """Return a case in promtool's format."""
    rule = alerts()[case.alert]
    expected = []
    if case.fires is not None:
        expected.append(
            {
                "exp_labels": {**rule["labels"], **case.fires.labels},
                "exp_annotations": {**rule["annotations"], "description": case.fires.description},
            }
        )
    return {
        "interval": f"{case.step_minutes}m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.minute}m", "alertname": case.alert, "exp_alerts": expected}
        ],
    }


def rules_of(alert: str) -> list[dict[str, Any]]:
    """Return the rules that record the series in an alert's expression, followed by the alert's own rule."""
    named = {rule.get("alert") or rule["record"]: rule for rule in rules()}
    needed = [alert]
    for name in needed:
        needed += [each for each in named if each in named[name]["expr"] and each not in needed]
    return [rule for name, rule in named.items() if name in needed]


def run_cases(cases: list[Case], folder: Path) -> subprocess.CompletedProcess[str]:
    """Test the rules with cases in promtool, which evaluates for each case only the rules of its alert."""
    files: list[Path] = []
    for alert, step in sorted({(case.alert, case.step_minutes) for case in cases}):
        group = {"name": "rules of the alert", "rules": rules_of(alert)}
        rule_file = folder / f"{alert}.yaml"
        rule_file.write_text(yaml.safe_dump({"groups": [group]}))
        chosen = [case for case in cases if (case.alert, case.step_minutes) == (alert, step)]
        content = {
            "rule_files": [str(rule_file)],
            "evaluation_interval": f"{step}m",
            "tests": [as_promtool_reads(case) for case in chosen],
        }
        files.append(folder / f"{alert}-every-{step}.yaml")
        files[-1].write_text(yaml.safe_dump(content))
    return promtool("test", "rules", *files)


def test_the_rules_are_rules() -> None:
    """Promtool accepts every rule file."""
    done = promtool("check", "rules", *RULE_FILES)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_every_alert_fires_and_stays_silent_as_it_should(tmp_path: Path) -> None:
    """In promtool's evaluation, each case fires with its labels and description, or does not fire."""
    done = run_cases(list(CASES), tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    """Every alert has a case that fires and a case that does not."""
    firing = {case.alert for case in CASES if case.fires is not None}
    silent = {case.alert for case in CASES if case.fires is None}

    assert firing == silent == set(alerts())


@pytest.mark.parametrize("fires", [True, False])
def test_the_cases_can_fail(fires: bool, tmp_path: Path) -> None:
    """Promtool fails a case that has the series of another case, or that expects a firing alert to be silent."""
    first, second = CASES[:2]
    swapped = Case(
        alert=first.alert,
        series=second.series if fires else first.series,
        minute=first.minute,
        fires=first.fires if fires else None,
    )
    done = run_cases([swapped], tmp_path)

    assert done.returncode == 1
    assert first.alert in done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(alerts()))
def test_an_alert_says_how_grave_it_is_and_what_to_do(name: str) -> None:
    """Every alert has a severity, a summary, a description with its labels, and a section of the page."""
    rule = alerts()[name]
    notes = rule["annotations"]
    page = ALERTS_PAGE.read_text()
    section = page.partition(f"\n### {name}\n")[2].partition("\n#")[0]

    assert rule["labels"]["severity"] in SEVERITIES
    assert set(notes) == {"summary", "description", "runbook"}
    assert "{{" not in notes["summary"]
    assert "{{ $labels." in notes["description"]
    assert notes["runbook"] == f"docs/reference/alerts.md#{name.lower()}"
    assert f"`{rule['labels']['severity']}`" in section
    assert "**Meaning.**" in section
    assert "**What to do.**" in section


def test_the_page_knows_no_other_alert() -> None:
    """The page contains no section about an alert that does not exist."""
    assert set(re.findall(r"^### (Fairlead\w+)$", ALERTS_PAGE.read_text(), re.MULTILINE)) == set(alerts())


def test_clusters_of_kubernetes_stay_apart() -> None:
    """Series of several Kubernetes clusters in one Prometheus have the label `cluster`, and no rule drops the label."""
    groupings = [
        (rule.get("alert") or rule["record"], labels)
        for rule in rules()
        for labels in re.findall(r"\bby \(([^)]*)\)", rule["expr"])
    ]

    assert len(groupings) > 40
    assert [each for each in groupings if not each[1].startswith("cluster, namespace")] == []
    assert [rule["expr"] for rule in rules() if "without" in rule["expr"]] == []


def test_names_are_unique() -> None:
    """No alert and no recorded series is defined twice."""
    names = [rule.get("alert") or rule["record"] for rule in rules()]

    assert len(names) == len(set(names))


def test_what_is_recorded_is_used() -> None:
    """A recorded series that no alert uses is listed in this test, as a series for users' queries only."""
    expressions = " ".join(rule["expr"] for rule in rules())
    unused = {rule["record"] for rule in rules() if "record" in rule and rule["record"] not in expressions}

    assert unused == {"cluster_direction:fairlead_records:rate5m"}
