"""Spark jobs: their lag as Fairlead sees it, and what Spark tells of queries and executors.

Spark puts the name of a query into the names of its metrics; they are found by pattern, and the name becomes a label.
"""

from __future__ import annotations

from typing import Final

from boards.groups import GROUP, GROUPS
from boards.vocabulary import CLUSTER_NAME, NAMESPACE, PER_SECOND, Board, Row, Variable, graph, number

JOB_NAMESPACE: Final = Variable(
    name="job_namespace",
    label="Namespace of jobs",
    query="label_values(metrics_executor_maxTasks, namespace)",
)
EXECUTORS: Final = 'namespace=~"$job_namespace"'
EXECUTOR: Final = "application_name, executor_id"
NAMED: Final = "{{application_name}} {{executor_id}}"


def of_queries(what: str) -> tuple[str, str]:
    """Return a gauge that every streaming query has, with the query's name as a label."""
    name = f"metrics_.+_spark_streaming_(.+)_{what}_Number"
    return (
        f'label_replace({{__name__=~"{name.replace("(", "").replace(")", "")}", {EXECUTORS}}},'
        f' "query", "$1", "__name__", "{name}")',
        "{{query}}",
    )


def each(metric: str) -> tuple[str, str]:
    """Return a gauge of each executor."""
    return f"sum by ({EXECUTOR}) ({metric}{{{EXECUTORS}}})", NAMED


def growth(metric: str) -> tuple[str, str]:
    """Return how much a counter of each executor grows a second."""
    return f"sum by ({EXECUTOR}) (rate({metric}{{{EXECUTORS}}}{PER_SECOND}))", NAMED


BOARD: Final = Board(
    name="spark",
    title="Fairlead / Spark jobs",
    description="Streaming queries of Spark over Fairlead: lag, rates, state and executors.",
    variables=(NAMESPACE, CLUSTER_NAME, GROUP, JOB_NAMESPACE),
    rows=(
        Row(
            "Lag",
            (
                number(
                    "Records behind of jobs",
                    "Records that the groups of the jobs have not read.",
                    f"sum(fairlead_group_lag_records{{{GROUPS}}})",
                    bad_from=None,
                ),
                number(
                    "Time behind of jobs",
                    "Age of the oldest record that a job has not read.",
                    f"max(fairlead_group_lag_seconds{{{GROUPS}}})",
                    unit="s",
                    bad_from=300,
                ),
                number(
                    "Executors",
                    "Executors that Spark's drivers tell of, the drivers themselves included.",
                    f"count(metrics_executor_maxTasks{{{EXECUTORS}}})",
                    bad_from=None,
                    bad_below=1,
                ),
                graph(
                    "Lag of jobs in records",
                    "By group and topic, as a query's listener has published it.",
                    "short",
                    (
                        f"sum by (group, topic) (fairlead_group_lag_records{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                ),
                graph(
                    "Lag of jobs in time",
                    "Age of the oldest record that is not read.",
                    "s",
                    (
                        f"max by (group, topic) (fairlead_group_lag_seconds{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                ),
            ),
        ),
        Row(
            "Queries",
            (
                graph(
                    "Rows that arrive",
                    "Rows a second that came to each query; Spark's own figure.",
                    "cps",
                    of_queries("inputRate_total"),
                ),
                graph(
                    "Rows that are processed",
                    "Rows a second that each query can take; below the rate of arrival it falls behind.",
                    "cps",
                    of_queries("processingRate_total"),
                ),
                graph(
                    "Time of a batch", "How long the last batch of a query took.", "ms", of_queries("latency")
                ),
                graph(
                    "Rows of state",
                    "Rows that a query keeps for windows and sessions.",
                    "short",
                    of_queries("states_rowsTotal"),
                ),
                graph(
                    "Memory of state",
                    "Bytes of memory that a query keeps for windows and sessions.",
                    "bytes",
                    of_queries("states_usedBytes"),
                ),
                graph(
                    "Watermark",
                    "Event time up to which a query waits for no late rows any more.",
                    "dateTimeAsIso",
                    of_queries("eventTime_watermark"),
                ),
            ),
        ),
        Row(
            "Executors",
            (
                graph("Tasks under way", "By executor.", "short", each("metrics_executor_activeTasks")),
                graph(
                    "Tasks that end",
                    "Tasks a second that were completed.",
                    "cps",
                    growth("metrics_executor_completedTasks_total"),
                ),
                graph(
                    "Tasks that fail",
                    "Tasks a second; Spark tries each four times.",
                    "cps",
                    growth("metrics_executor_failedTasks_total"),
                ),
                graph(
                    "Garbage collection",
                    "Seconds a second that tasks spent on it.",
                    "percentunit",
                    growth("metrics_executor_totalGCTime_seconds_total"),
                ),
                graph("Heap", "Memory of the JVM.", "bytes", each("metrics_executor_JVMHeapMemory_bytes")),
                graph(
                    "Shuffle written",
                    "Bytes a second.",
                    "Bps",
                    growth("metrics_executor_totalShuffleWrite_bytes_total"),
                ),
            ),
        ),
    ),
)
