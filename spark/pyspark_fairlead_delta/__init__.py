"""Registration of `format("fairlead-delta")`: Spark discovers sinks by this module name, and the import never fails.

Spark imports every module whose name begins with `pyspark_`, and an error in one module stops the discovery of all data
sources. If this sink cannot work, the module defines no sink, and `reason` explains why.
"""

from __future__ import annotations

from importlib.util import find_spec

PYSPARK_OLDEST = (4, 2)

reason: str | None = None
"""Reason why the sink is not available; None if the sink is available."""

try:
    from pyspark.version import __version__ as _version

    if tuple(int(part) for part in _version.split(".")[:2]) < PYSPARK_OLDEST:
        reason = f"PySpark {_version} is too old: the oldest supported release is {'.'.join(map(str, PYSPARK_OLDEST))}"
    elif find_spec("deltalake") is None:
        # deltalake is only located, not imported, so that sessions without a lake sink do not wait for the import.
        reason = "deltalake is not installed. Install with: pip install 'fairlead[spark]'"
    else:
        from pyspark_fairlead_delta.default_source import DefaultSource as DefaultSource
except Exception as _error:  # noqa: BLE001 - an error must not hide other data sources
    reason = f"{type(_error).__name__}: {_error}. Install with: pip install 'fairlead[spark]'"
