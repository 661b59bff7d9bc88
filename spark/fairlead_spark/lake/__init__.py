"""The lake sink: writes a micro-batch as Parquet files and one commit to a Delta table, without a JVM jar.

`columns` converts the schema of a data frame to the schema of a Delta table, `options` parses the user's options, and
`storage` accesses the files. Tasks write files (`files`, with the column bounds of `statistics`), and the driver
commits the files (`commits`). Only `writers` depends on Spark. `pyspark_fairlead_delta` and pipelines use this package.

Each record is in the table exactly once. A commit contains the ids of the query and the batch, and a batch that the
table already has is skipped. The records of a file are in the table only if a commit lists the file.
"""

from __future__ import annotations

from fairlead_spark.lake.columns import SchemaMismatch
from fairlead_spark.lake.commits import LakeCommitFailed
from fairlead_spark.lake.files import PartitionValueError
from fairlead_spark.lake.options import LakeOptions

__all__ = ["LakeCommitFailed", "LakeOptions", "PartitionValueError", "SchemaMismatch"]
