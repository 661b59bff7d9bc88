"""Data source for `format("fairlead-delta")`: its writers, which are imported on first use.

The package imports this module on PySpark 4.2 and newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource

from fairlead_spark.brief_errors import brief_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fairlead_spark.lake.writers import LakeBatchWriter, LakeStreamWriter


class DefaultSource(DataSource):
    """A Delta table as a sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "fairlead-delta"

    def schema(self) -> NoReturn:
        """Raise an error, since tables are read with other readers of Delta or Parquet."""
        message = (
            "fairlead-delta writes tables and does not read them; read with deltalake, DuckDB, pyarrow, "
            "or Spark's Parquet reader over DeltaTable(path).file_uris()"
        )
        raise PySparkNotImplementedError(message)

    def writer(self, schema: StructType, overwrite: bool) -> LakeBatchWriter:
        """Return the writer of a batch write."""
        from fairlead_spark.lake import SchemaMismatch
        from fairlead_spark.lake.writers import batch_writer

        with brief_errors(SchemaMismatch):
            return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeStreamWriter:
        """Return the writer of a stream."""
        from fairlead_spark.lake import SchemaMismatch
        from fairlead_spark.lake.writers import stream_writer

        with brief_errors(SchemaMismatch):
            return stream_writer(self.options, schema, overwrite=overwrite)
