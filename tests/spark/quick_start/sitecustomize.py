"""A module that Python processes of a killed driver import at their start, to import PySpark as installed.

Spark puts the PySpark archive next to its jars first on the path. Modules in an archive have no bytecode, so every
worker would compile for a second and a half, which is longer than its run. On shared cores a worker would not start
before the timeout of Spark.
"""

from __future__ import annotations

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
