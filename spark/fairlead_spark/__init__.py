"""Fairlead for Spark: source, sink and lake sink of PySpark, progress as a group, and the pipelines built of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["GroupProgress"]


def __getattr__(name: str) -> Any:
    """Load what needs PySpark when it is asked for: without PySpark the package still says what is missing.

    By name, so that no room is seen to know another through the package that holds them all.
    """
    if name == "GroupProgress":
        return import_module("fairlead_spark.progress").GroupProgress
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
