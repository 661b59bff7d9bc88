"""Page of the options, columns and offsets for Spark, generated from the code that reads them."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

from page_text import GENERATED, code, table

from fairlead_spark.lake.options import LAKE_OPTIONS
from fairlead_spark.options import READ_OPTIONS, Option
from fairlead_spark.planning.columns import COLUMNS
from fairlead_spark.planning.losses import LossKind
from fairlead_spark.planning.tasks import TASK_ROWS_MIN
from fairlead_spark.sink.write_options import WRITE_OPTIONS

TEXT = """# Options of Spark

Options of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`; [the how-to](../how-to/spark.md) has examples.
Options that also exist for Kafka have the same names. The case of a name does not matter, and an unknown option is an error.

## Reading: `format("fairlead")`

"""
AFTER_READING = f"""
Exactly one of `subscribe`, `subscribePattern` and `assign` must be given. A read has few tasks, since each task needs tens
of milliseconds before its first record. The number of tasks is limited by the number of partitions with unread records,
by the number of cores of the driver's machine, and to one for each {TASK_ROWS_MIN:,} records. On a cluster, set
`minPartitions` to the total number of cores of the executors: if there are fewer partitions, they are split.
`maxPartitions` only limits the number of tasks.

### Columns

"""
OFFSETS = """
### Offsets

Spark stores the position of a query in its checkpoint and reports the position as progress. Offsets are JSON with sorted
keys:

```json
{"topics": {"flights": {"id": "0198f3e2-5a6b", "offsets": {"0": [1200, 4], "1": [1180, 4]}}}, "v": 1}
```

Each partition has the next offset to read and the epoch of a leader that had all records before this offset, or -1 if the
epoch is unknown. Each topic has its id. The end of the first trigger of a query also contains the start of this trigger in
`from`, since Spark does not store the start and would begin elsewhere after a crash. A newer release reads the offsets of
older releases; offsets of an unknown version are refused.

### Losses

With `failOnDataLoss=true`, a query fails if expected records are missing, and the error names the topic, the partition and
the offsets. The query fails before Spark stores a new end. There is one exception: if a log lost its end and has since grown
beyond the position of the query, only the tasks detect the loss, after Spark stored the end. With `failOnDataLoss=false`,
the driver or executor logs a warning and the query continues.

"""
WRITING = """
## Writing: `format("fairlead")`

"""
LAKE = """
## Writing: `format("fairlead-delta")`

"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    losses = [[kind.meaning, kind.otherwise] for kind in LossKind]
    columns = [[code(column.name), code(column.ddl), column.meaning] for column in COLUMNS]
    return {
        "spark-options.md": "".join(
            (
                TEXT.replace("\n\n", f"\n\n{GENERATED}", 1),
                _options(READ_OPTIONS, by_reads=True),
                AFTER_READING,
                table(["column", "type", "what it holds"], columns),
                OFFSETS,
                table(["what happened", "with `failOnDataLoss=false` the query"], losses),
                WRITING,
                _options(WRITE_OPTIONS, by_reads=False),
                LAKE,
                _options(LAKE_OPTIONS, by_reads=False),
            )
        )
    }


def _options(options: tuple[Option, ...], *, by_reads: bool) -> str:
    if by_reads:
        return table(
            ["option", "for", "allowed", "default", "meaning"],
            [
                [code(option.name), option.reads, option.allowed, option.default, option.meaning]
                for option in options
            ],
        )
    return table(
        ["option", "allowed", "default", "meaning"],
        [[code(option.name), option.allowed, option.default, option.meaning] for option in options],
    )
