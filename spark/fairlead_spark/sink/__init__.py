"""The sink: rows of a query become records of topics, at least once.

Called by the data source of Spark, on the driver to check the schema and in the workers to write. The columns mean
what they mean in Kafka's sink. Arrow batches stay Arrow batches all the way; nothing here looks at a single record.
"""

from fairlead_spark.sink.columns import SchemaError
from fairlead_spark.sink.task import WriteError
from fairlead_spark.sink.write_options import WriteOptions
from fairlead_spark.sink.writers import batch_writer, stream_writer

__all__ = ["SchemaError", "WriteError", "WriteOptions", "batch_writer", "stream_writer"]
