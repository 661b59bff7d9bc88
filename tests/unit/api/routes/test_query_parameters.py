"""Definitions of query parameters."""

from __future__ import annotations

import pytest

from fairlead_api.routes.query_parameters import ParameterKind, QueryParameter


@pytest.mark.parametrize("kind", ParameterKind)
def test_every_kind_describes_its_values(kind: ParameterKind) -> None:
    """The description of the allowed values contains the choices of an enumeration and the limits of a number."""
    parameter = QueryParameter(
        name="a", kind=kind, explanation="", minimum=3, maximum=7_000, choices=("yes", "no")
    )
    parts = {
        ParameterKind.INTEGER: ("3", "7000"),
        ParameterKind.CHOICE: ("yes", "no"),
        ParameterKind.FLAG: ("true", "false"),
        ParameterKind.OFFSET: ("earliest", "latest"),
        ParameterKind.TIMESTAMP: ("1970", "3339"),
        ParameterKind.TOPIC_NAMES: (),
        ParameterKind.TEXT: ("7000",),
    }

    assert parameter.allowed
    assert [part for part in parts[kind] if part not in parameter.allowed] == []
