"""Data source for `format("fairlead")`: its schema, readers and writers. Readers and writers are imported on first use.

The package imports this module on PySpark 4.2 and newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from fairlead_spark.brief_errors import brief_errors
from fairlead_spark.catalog_tables import (
    created_options,
    read_part,
    stored_options,
    table_schema,
    written_options,
)
from fairlead_spark.option_values import MISSING, OptionError
from fairlead_spark.options import ReadOptions
from fairlead_spark.planning.columns import ddl_of
from fairlead_spark.worker_process import spare_collector

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def schema(self) -> str | StructType:
        """Return the schema of a read, or of a table that is being created."""
        spare_collector()
        with brief_errors():
            created = created_options(self.options)
            if created is not None:
                return table_schema(created)
            return ddl_of(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read."""
        from fairlead_spark.source.readers import BatchReader

        with brief_errors():
            options = self._read_options(schema).for_batch()
        of_table = bool(stored_options(schema))
        if options.pushdown:
            # Spark refuses every read by a reader with filter support, unless Spark's configuration allows filter
            # pushdown.
            from fairlead_spark.source.pushdown import reader_of

            return reader_of(options, of_table=of_table)
        return BatchReader(options, of_table=of_table)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from fairlead_spark.source.readers import RefusedStream, StreamReader

        try:
            return StreamReader(self._read_options(schema))
        except OptionError as error:
            # After an error in this method, Spark tries to stop the missing reader and shows the error of that attempt.
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write."""
        from fairlead_spark.sink import SchemaError, batch_writer

        with brief_errors(SchemaError):
            written = written_options(schema) if not self.options else None
            options = self.options if written is None else written
            return batch_writer(options, schema, overwrite=overwrite, to_table=written is not None)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        from fairlead_spark.sink import SchemaError, stream_writer

        with brief_errors(SchemaError):
            return stream_writer(self.options, schema, overwrite=overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        spare_collector()
        stored = stored_options(schema)
        if not stored and not self.options:
            allowed = (
                "options of the read; a table gets its options when it is created without columns, as in "
                "CREATE TABLE flights USING fairlead OPTIONS (subscribe 'flights')"
            )
            raise OptionError("subscribe", MISSING, allowed)
        # Options of one query, as in `SELECT ... FROM flights WITH (...)`, override those of the table.
        options = ReadOptions.parse(
            read_part({**stored, **_lowered(self.options)}) if stored else self.options
        )
        if tuple(schema.names) != options.columns:
            allowed = (
                f"no schema: the columns are {', '.join(options.columns)}; select with the option columns"
            )
            raise OptionError("schema", ", ".join(schema.names), allowed)
        return options


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
