"""The columns given to `partitionBy()` of PySpark's writers reach the sink for Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable
from pyspark.errors import PySparkException

from fairlead_spark import pass_partition_by
from refusals import raises

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_the_columns_of_a_writer_partition_its_table(
    spark: SparkSession, bootstrap: str, hundred: str, tmp_path: Path
) -> None:
    """Streams and batch writes accept `partitionBy`, even as an argument of `save`; the sink of topics refuses it."""
    pass_partition_by(spark)
    pass_partition_by(spark)
    source = {"bootstrap": bootstrap, "subscribe": hundred, "startingOffsets": "earliest"}
    rows = spark.readStream.format("fairlead").options(**source).load()
    stream = (
        rows.selectExpr("offset", "offset % 2 AS p").writeStream.partitionBy("p").format("fairlead-delta")
    )
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = stream.start(str(tmp_path / "stream"))
    assert query.awaitTermination(400), "the query takes too long"
    frame = spark.range(4).selectExpr("id", "id % 2 AS p", "CAST(id AS STRING) AS q")
    frame.write.format("fairlead-delta").mode("append").save(str(tmp_path / "batch"), partitionBy=["p", "q"])
    with raises(PySparkException, "partitionby"):
        frame.write.format("fairlead").option("topic", hundred).mode("append").partitionBy("p").save()
    table = DeltaTable(tmp_path / "stream")

    assert table.metadata().partition_columns == ["p"]
    assert table.to_pyarrow_table(filters=[("p", "=", 1)]).num_rows == 50
    assert DeltaTable(tmp_path / "batch").metadata().partition_columns == ["p", "q"]
