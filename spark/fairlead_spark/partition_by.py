"""The method `partitionBy()` of PySpark's writers as an option of the sinks.

Spark drops the columns of `writeStream.partitionBy()` inside the JVM before it creates a sink in Python, and refuses
the columns of a batch write with an error about its own planning. Only the part of Spark that runs in the program can
pass the columns: the methods of PySpark's writers set the option `partitionBy` if the format is one of Fairlead's. The
sink of topics refuses the option, since the keys of records determine their partitions. `spark_session` calls this
module, and so do programs that create their session themselves.
"""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Final = frozenset({"fairlead", "fairlead-delta"})
OPTION: Final = "partitionBy"
CLASSIC: Final = ("pyspark.sql.readwriter", "pyspark.sql.streaming.readwriter")
CONNECT: Final = ("pyspark.sql.connect.readwriter", "pyspark.sql.connect.streaming.readwriter")
WRITERS: Final = ("DataFrameWriter", "DataStreamWriter")
_EXTENDED: Final = "_fairlead_extended"
"""Attribute of a class whose methods pass the columns."""
_FORMAT: Final = "_fairlead_format"
_COLUMNS: Final = "_fairlead_columns"


def pass_partition_by(spark: SparkSession) -> None:
    """Pass the columns of `partitionBy()` to `format("fairlead-delta")`, in streams and batch writes of this process.

    `spark` is any session, including a session of Spark Connect. A second call changes nothing.
    """
    modules = CONNECT if type(spark).__module__.startswith("pyspark.sql.connect.") else CLASSIC
    for module, name in zip(modules, WRITERS, strict=True):
        writer = getattr(import_module(module), name)
        if not hasattr(writer, _EXTENDED):
            extend(writer)


def extend(writer: Any) -> None:
    """Replace the methods `format` and `partitionBy` of a class of writers, which may be called in any order."""
    set_format, set_columns = writer.format, writer.partitionBy

    def passed(self: Any) -> Any:
        columns = getattr(self, _COLUMNS, ())
        if columns and getattr(self, _FORMAT, "") in FORMATS:
            # Spark refuses a batch write that has both columns and this option.
            set_columns(self, [])
            self.option(OPTION, ",".join(columns))
        return self

    @wraps(set_format)
    def format_(self: Any, source: str) -> Any:
        setattr(self, _FORMAT, source.lower())
        return passed(set_format(self, source))

    @wraps(set_columns)
    def partition_by(self: Any, *cols: Any) -> Any:
        names = cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        setattr(self, _COLUMNS, tuple(names))
        return passed(set_columns(self, *cols))

    writer.format, writer.partitionBy = format_, partition_by
    setattr(writer, _EXTENDED, True)
