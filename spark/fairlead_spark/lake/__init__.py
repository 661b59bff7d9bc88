"""The lake sink: a micro-batch becomes Parquet files and one commit of a Delta table, without a JVM jar.

What happens where: `columns` says what a frame's schema is in a Delta table, `options` what the user asked for,
`storage` where files lie; a task writes them (`files`, with the bounds of `statistics`), and the driver commits them
(`commits`). `writers` is the one room that knows Spark. Called by `pyspark_fairlead_delta` and by pipelines.

Why a record is in the table exactly once: the commit carries the id of the query and of the batch, a batch that is
there already is passed over, and what a file holds is in the table only when a commit lists it.
"""

from __future__ import annotations

from fairlead_spark.lake.columns import SchemaMismatch
from fairlead_spark.lake.commits import LakeCommitFailed
from fairlead_spark.lake.files import PartitionValueError
from fairlead_spark.lake.options import LakeOptions

__all__ = ["LakeCommitFailed", "LakeOptions", "PartitionValueError", "SchemaMismatch"]
