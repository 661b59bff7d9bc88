from __future__ import annotations

import pytest

from fairlead_operator.plan.observed import is_paused


@pytest.mark.parametrize(
    ("annotations", "paused"),
    [
        ({"fairlead.dev/paused": "true"}, True),
        ({"fairlead.dev/paused": "True"}, True),
        ({"fairlead.dev/paused": "false"}, False),
        ({"others.dev/paused": "true"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_the_annotation_pauses(annotations: dict[str, str] | None, paused: bool) -> None:
    """The annotation pauses a resource if its value is `true` in YAML's or Python's notation."""
    assert is_paused({"metadata": {"name": "main", "annotations": annotations}}) is paused
