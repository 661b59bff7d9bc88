"""Spark looks for data sources in modules of this name: `format("fairlead-delta")`. Never raises on import.

Spark imports every module whose name begins with `pyspark_`, and an error in one ends the search for all vendors'.
So where this sink cannot work, nothing is defined, and `reason` says why.
"""

from __future__ import annotations

from importlib.util import find_spec

PYSPARK_OLDEST = (4, 2)

reason: str | None = None
"""Why there is no sink; None where there is one."""

try:
    from pyspark.version import __version__ as _version

    if tuple(int(part) for part in _version.split(".")[:2]) < PYSPARK_OLDEST:
        reason = (
            f"PySpark {_version} is too old: the oldest that works is {'.'.join(map(str, PYSPARK_OLDEST))}"
        )
    elif find_spec("deltalake") is None:
        # Looked for and not imported: a session that never writes to a lake does not wait for it.
        reason = "deltalake is not installed. Install with: pip install 'fairlead[spark]'"
    else:
        from pyspark_fairlead_delta.default_source import DefaultSource as DefaultSource
except Exception as _error:  # noqa: BLE001 - whatever it is, other vendors' sources must be found
    reason = f"{type(_error).__name__}: {_error}. Install with: pip install 'fairlead[spark]'"
