"""Writes and reads records with the SDK, the command line and Spark, all of which reach a cluster by one address.

`python outside_program.py BOOTSTRAP TOPIC` writes a third of the records with each of the three, and prints the numbers
that each of the three has read as a JSON object. The topic has three partitions, and each record is the number of its
partition plus a multiple of three.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from fairlead.blocking import Consumer, Producer

EACH: Final = 10
PARTITIONS: Final = 3
PROGRAM: Final = str(Path(sys.executable).with_name("fairlead"))


def write(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Write to partition 0 with the SDK, to partition 1 with the command line, and to partition 2 with Spark."""
    numbers = [list(range(partition, PARTITIONS * EACH, PARTITIONS)) for partition in range(PARTITIONS)]
    with Producer(bootstrap, one_address=True) as producer:
        for number in numbers[0]:
            producer.send_and_wait(topic, b"%d" % number, partition=0)
    produce = [PROGRAM, "produce", topic, "--partition", "1", "--bootstrap", bootstrap, "--one-address"]
    typed = "".join(f"{number}\n" for number in numbers[1])
    subprocess.run(produce, input=typed, stdout=subprocess.DEVNULL, text=True, check=True)
    rows = spark.createDataFrame([(str(number), 2) for number in numbers[2]], "value string, partition int")
    options = {"bootstrap": bootstrap, "oneAddress": "true", "topic": topic}
    rows.write.format("fairlead").mode("append").options(**options).save()


def read(spark: SparkSession, bootstrap: str, topic: str) -> dict[str, list[int]]:
    """Return the numbers that a consumer of the SDK, the command line and Spark read."""
    with Consumer(bootstrap, one_address=True) as consumer:
        consumer.assign(topic=topic, start="earliest")
        by_sdk = [int(record.value or b"") for record in consumer.records(consumer.end_offsets())]
    consume = [
        PROGRAM,
        "consume",
        topic,
        "--from-beginning",
        "--exit",
        "--bootstrap",
        bootstrap,
        "--one-address",
    ]
    by_command = subprocess.run(consume, capture_output=True, text=True, check=True).stdout.split()
    options = {"bootstrap": bootstrap, "oneAddress": "true", "subscribe": topic}
    rows = (
        spark.read.format("fairlead").options(**options).load().selectExpr("CAST(value AS STRING) AS number")
    )
    by_spark = [int(row.number) for row in rows.collect()]
    found = {"sdk": by_sdk, "command line": map(int, by_command), "spark": by_spark}
    return {name: sorted(each) for name, each in found.items()}


def main(bootstrap: str, topic: str) -> None:
    """Run from the command line."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="outside-") as folder:
        conf = {
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.local.dir": f"{folder}/local",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        }
        builder = SparkSession.builder.master("local[2]").appName("outside")
        for name, value in conf.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        write(spark, bootstrap, topic)
        sys.stdout.write(json.dumps(read(spark, bootstrap, topic)) + "\n")
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
