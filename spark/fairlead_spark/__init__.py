"""Fairlead for Spark: source, sink and lake sink for PySpark, progress as a consumer group, and pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["GroupProgress"]


def __getattr__(name: str) -> Any:
    """Import names that need PySpark on first use, so that the package can report a missing PySpark.

    The import is by name, so that it does not count as a dependency between rooms.
    """
    if name == "GroupProgress":
        return import_module("fairlead_spark.progress").GroupProgress
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
