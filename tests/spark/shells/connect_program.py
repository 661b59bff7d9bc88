"""Client of Spark Connect that uses the topics of a cluster as tables; `test_shells.py` starts it.

`python connect_program.py ADDRESS BOOTSTRAP TOPIC` prints the number of rows before and after a write, and the number
of rows that a stream of the table has seen.
"""

from __future__ import annotations

import sys

from pyspark.sql.connect.session import SparkSession

from fairlead_spark import register_topics


def main(address: str, bootstrap: str, topic: str) -> None:
    """Read, write and stream the table of a topic."""
    spark = SparkSession.builder.remote(f"sc://{address}").getOrCreate()
    table = register_topics(spark, bootstrap, pattern=topic)[topic]
    sys.stdout.write(f"{spark.table(table).count()}\n")
    spark.sql(f"INSERT INTO {table} (value) VALUES (CAST('further' AS BINARY))")
    sys.stdout.write(f"{spark.table(table).count()}\n")
    stream = spark.readStream.option("startingOffsets", "earliest").table(table)
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    sys.stdout.write(f"{spark.table('seen').count()}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
