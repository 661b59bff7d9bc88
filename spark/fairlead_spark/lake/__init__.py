"""The lake sink: writes a micro-batch as Parquet files and one commit of a Delta table, without a JVM jar.

`columns` converts the schema of a frame to that of a Delta table, `options` parses the user's options, and `storage`
accesses the files. Tasks write files (`files`, with the bounds of `statistics`), and the driver commits them
(`commits`). Only `writers` knows Spark. Called by `pyspark_fairlead_delta` and by pipelines.

A record is in the table exactly once: a commit contains the ids of the query and the batch, a batch that the table
already has is skipped, and the records of a file are in the table only if a commit lists the file.
"""

from __future__ import annotations

from fairlead_spark.lake.columns import SchemaMismatch
from fairlead_spark.lake.commits import LakeCommitFailed
from fairlead_spark.lake.files import PartitionValueError
from fairlead_spark.lake.options import LakeOptions

__all__ = ["LakeCommitFailed", "LakeOptions", "PartitionValueError", "SchemaMismatch"]
