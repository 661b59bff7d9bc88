"""Fairlead for Spark: source, sink and lake sink for PySpark, consumer group progress, and pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["GroupProgress"]


def __getattr__(name: str) -> Any:
    """Import a name that needs PySpark on first use, so that the package can report a missing PySpark.

    The module is imported by its name as text, so that the import does not count as a dependency between packages.
    """
    if name == "GroupProgress":
        return import_module("fairlead_spark.progress").GroupProgress
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
