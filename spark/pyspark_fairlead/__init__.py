"""Registration of `format("fairlead")`: Spark discovers data sources by this module name. Never raises on import.

Spark imports every module whose name begins with `pyspark_`, and an error in one module stops the discovery for all
vendors. If this source cannot work, the module defines no source, and `reason` says why.
"""

from __future__ import annotations

PYSPARK_OLDEST = (4, 2)

reason: str | None = None
"""Why the source is not available; None if it is."""

try:
    from pyspark.version import __version__ as _version

    if tuple(int(part) for part in _version.split(".")[:2]) < PYSPARK_OLDEST:
        reason = (
            f"PySpark {_version} is too old: the oldest that works is {'.'.join(map(str, PYSPARK_OLDEST))}"
        )
    else:
        from pyspark_fairlead.default_source import DefaultSource as DefaultSource
except Exception as _error:  # noqa: BLE001 - no error may hide other vendors' sources
    reason = f"{type(_error).__name__}: {_error}. Install with: pip install 'fairlead[spark]'"
