"""Fairlead for Spark: source, sink and lake sink for PySpark, consumer group progress, and pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["GroupProgress", "latest_by_key", "pass_partition_by", "register_topics", "spark_session"]

_MODULES = {
    "GroupProgress": "progress",
    "latest_by_key": "newest_rows",
    "pass_partition_by": "partition_by",
    "register_topics": "catalog_tables",
    "spark_session": "jobs.session",
}
"""Module of each exported name."""


def __getattr__(name: str) -> Any:
    """Import an exported name on first use, so that the package can report a missing PySpark.

    The module is imported by name, given as text, so that the import does not count as a dependency between packages.
    """
    if name in _MODULES:
        return getattr(import_module(f"fairlead_spark.{_MODULES[name]}"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
