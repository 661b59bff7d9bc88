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

What `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` take; [the how-to](../how-to/spark.md) shows them at
work. Names are Kafka's where Kafka has one, their case does not matter, and an option that does not exist is an error.

## Reading: `format("fairlead")`

"""
AFTER_READING = f"""
Exactly one of `subscribe`, `subscribePattern` and `assign` says what is read. Reading takes few tasks, since each costs tens
of milliseconds before its first record: at most one for each partition with something to read, one for each core of the
driver's machine, and one for each {TASK_ROWS_MIN:,} records. On a cluster set `minPartitions` to the cores
that the executors have together: partitions are cut where it asks for more tasks than there are. `maxPartitions` only bounds.

### Columns

"""
OFFSETS = """
### Offsets

Spark keeps in its checkpoint, and reports as progress, how far a query is. Offsets are JSON with sorted keys:

```json
{"topics": {"flights": {"id": "0198f3e2-5a6b", "offsets": {"0": [1200, 4], "1": [1180, 4]}}}, "v": 1}
```

For each partition the next offset to read and the leader epoch that vouches for everything before it, -1 where no leader
was asked; for each topic its id. The end of a query's first trigger also says where that began, as `from`: Spark does not
keep it, and would begin elsewhere after a crash. A newer release reads what an older one wrote; offsets of a version that it does not know
are refused.

### Losses

With `failOnDataLoss=true` a query fails when records that it counted on are not there, and the error says which topic,
partition and offsets, before Spark notes a new end; of a log that lost its end and has grown past the query since, only the
tasks tell, after it. With `false` it warns in the log of driver or executor.

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
