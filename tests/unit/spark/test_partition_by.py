"""The columns of `partitionBy()` become an option of Fairlead's sinks, but of no other format."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_spark.partition_by import extend


def writer_class() -> type[Any]:
    """Return a class of writers like those of PySpark, with extended methods."""

    class Writer:
        def __init__(self) -> None:
            self.columns: list[str] = []
            self.options: dict[str, str] = {}

        def format(self, source: str) -> Writer:
            del source
            return self

        def partitionBy(self, *cols: Any) -> Writer:  # noqa: N802 - Spark's name
            self.columns = list(cols[0] if len(cols) == 1 and isinstance(cols[0], list) else cols)
            return self

        def option(self, key: str, value: str) -> Writer:
            self.options[key] = value
            return self

    extend(Writer)
    return Writer


@pytest.mark.parametrize("is_format_first", [True, False])
@pytest.mark.parametrize("given", [("a", "b"), (["a", "b"],)])
@pytest.mark.parametrize("source", ["fairlead-delta", "Fairlead", "parquet"])
def test_only_sinks_of_fairlead_get_the_columns_as_an_option(
    source: str, given: tuple[Any, ...], is_format_first: bool
) -> None:
    """Only Fairlead's sinks get the partition columns as an option, whether the format is set first or last."""
    writer = writer_class()()
    if is_format_first:
        writer.format(source).partitionBy(*given)
    else:
        writer.partitionBy(*given).format(source)

    expected = (["a", "b"], {}) if source == "parquet" else ([], {"partitionBy": "a,b"})
    assert (writer.columns, writer.options) == expected
