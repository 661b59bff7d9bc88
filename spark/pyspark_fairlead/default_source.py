"""Data source for `format("fairlead")`: its schema, readers and writers. Readers and writers are imported on first use.

The package imports this module on PySpark 4.2 and newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from fairlead_spark.options import OptionError, ReadOptions
from fairlead_spark.planning.columns import ddl_of
from fairlead_spark.worker_process import spare_collector

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Fairlead topics as a source and a sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "fairlead"

    def schema(self) -> str:
        """Return the schema of a read."""
        spare_collector()
        return ddl_of(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read."""
        from fairlead_spark.source.readers import BatchReader

        options = self._read_options(schema)
        if options.pushdown:
            # Spark refuses every read by a reader with filter support, unless Spark's configuration allows filter
            # pushdown.
            from fairlead_spark.source.pushdown import reader_of

            return reader_of(options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from fairlead_spark.source.readers import StreamReader

        return StreamReader(self._read_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write."""
        from fairlead_spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        from fairlead_spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        spare_collector()
        options = ReadOptions.parse(self.options)
        if tuple(schema.names) != options.columns:
            allowed = (
                f"no schema: the columns are {', '.join(options.columns)}; select with the option columns"
            )
            raise OptionError("schema", ", ".join(schema.names), allowed)
        return options
