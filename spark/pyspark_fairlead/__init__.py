"""Registration of `format("fairlead")`: Spark discovers data sources by this module name, and the import never fails.

Spark imports every module whose name begins with `pyspark_`, and an error in one module stops the discovery of all data
sources. If this source cannot work, the module defines no source, and `reason` explains why.
"""

from __future__ import annotations

PYSPARK_OLDEST = (4, 2)

reason: str | None = None
"""Reason why the source is not available; None if the source is available."""

try:
    from pyspark.version import __version__ as _version

    if tuple(int(part) for part in _version.split(".")[:2]) < PYSPARK_OLDEST:
        reason = f"PySpark {_version} is too old: the oldest supported release is {'.'.join(map(str, PYSPARK_OLDEST))}"
    else:
        from pyspark_fairlead.default_source import DefaultSource as DefaultSource
except Exception as _error:  # noqa: BLE001 - an error must not hide other data sources
    reason = f"{type(_error).__name__}: {_error}. Install with: pip install 'fairlead[spark]'"
