"""The sink: writes the rows of a query as records to topics, at least once, or exactly once with transactions.

The Spark data source uses this package on the driver to check the schema, and in the workers to write. The columns have
the same meaning as in Kafka's sink. Rows stay in Arrow batches throughout: no code in this package handles single
records.
"""

from fairlead_spark.sink.columns import SchemaError
from fairlead_spark.sink.task import WriteError
from fairlead_spark.sink.write_options import WriteOptions
from fairlead_spark.sink.writers import batch_writer, stream_writer

__all__ = ["SchemaError", "WriteError", "WriteOptions", "batch_writer", "stream_writer"]
