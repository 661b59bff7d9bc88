"""The reference page of the operator's settings and metrics is complete."""

from __future__ import annotations

import re

import structlog
from prometheus_client import generate_latest

import checkout
from fairlead_operator.settings import OperatorSettings
from fairlead_operator.telemetry import Telemetry

PAGE = (checkout.ROOT / "docs/reference/operator.md").read_text()


def test_every_setting_is_on_the_page() -> None:
    """The reference page lists exactly the settings of the operator."""
    named = set(re.findall(r"FAIRLEAD_OPERATOR_([A-Z_]+)", PAGE))

    assert named == {name.upper() for name in OperatorSettings.model_fields}


def test_every_metric_is_on_the_page() -> None:
    """The reference page lists exactly the metrics of the operator."""
    exposed = generate_latest(Telemetry(structlog.get_logger()).registry).decode()

    assert set(re.findall(r"`((?:fairlead_operator|process)_\w+)`", PAGE)) == set(
        re.findall(r"# TYPE (\w+)", exposed)
    )
