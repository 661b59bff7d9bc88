"""Imported by every Python process of a killed driver at its start: PySpark comes from its installation.

Spark names the archive beside its jars first. A module in an archive has no bytecode: every worker would compile
for a second and a half, longer than it lives, and where cores are shared not begin to work before Spark gives it up.
"""

from __future__ import annotations

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
