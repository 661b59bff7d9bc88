"""Board with the lag of Spark jobs as measured by Fairlead, and Spark's own metrics of queries and executors.

Spark includes the name of a query in the names of its metrics. The board selects these metrics by a pattern, and turns
the name of the query into a label.
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
    """Return expression and legend of a gauge for all streaming queries, with the name of the query as a label."""
    name = f"metrics_.+_spark_streaming_(.+)_{what}_Number"
    return (
        f'label_replace({{__name__=~"{name.replace("(", "").replace(")", "")}", {EXECUTORS}}},'
        f' "query", "$1", "__name__", "{name}")',
        "{{query}}",
    )


def each(metric: str) -> tuple[str, str]:
    """Return expression and legend of a gauge with one series for each executor."""
    return f"sum by ({EXECUTOR}) ({metric}{{{EXECUTORS}}})", NAMED


def growth(metric: str) -> tuple[str, str]:
    """Return expression and legend of the growth per second of a counter of each executor."""
    return f"sum by ({EXECUTOR}) (rate({metric}{{{EXECUTORS}}}{PER_SECOND}))", NAMED


BOARD: Final = Board(
    name="spark",
    title="Fairlead / Spark jobs",
    description="Spark's streaming queries on Fairlead topics: lag, rates, state and executors.",
    variables=(NAMESPACE, CLUSTER_NAME, GROUP, JOB_NAMESPACE),
    rows=(
        Row(
            "Lag",
            (
                number(
                    "Unread records of jobs",
                    "Records that the consumer groups of the jobs have not read.",
                    f"sum(fairlead_group_lag_records{{{GROUPS}}})",
                    bad_from=None,
                ),
                number(
                    "Age of unread records",
                    "Age of the oldest record that a job has not read.",
                    f"max(fairlead_group_lag_seconds{{{GROUPS}}})",
                    unit="s",
                    bad_from=300,
                ),
                number(
                    "Executors",
                    "Executors that Spark's drivers report, including the drivers themselves.",
                    f"count(metrics_executor_maxTasks{{{EXECUTORS}}})",
                    bad_from=None,
                    bad_below=1,
                ),
                graph(
                    "Lag of jobs in records",
                    "Unread records by group and topic, from the offsets that the listener of a query published.",
                    "short",
                    (
                        f"sum by (group, topic) (fairlead_group_lag_records{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                ),
                graph(
                    "Lag of jobs in time",
                    "Age of the oldest unread record.",
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
                    "Rows per second that arrive at each query, as reported by Spark.",
                    "cps",
                    of_queries("inputRate_total"),
                ),
                graph(
                    "Rows that are processed",
                    "Rows per second that each query can process; a rate below the arrival rate lets the lag grow.",
                    "cps",
                    of_queries("processingRate_total"),
                ),
                graph(
                    "Duration of a batch",
                    "Duration of the last batch of a query.",
                    "ms",
                    of_queries("latency"),
                ),
                graph(
                    "Rows of state",
                    "Rows that a query keeps as state for windows and sessions.",
                    "short",
                    of_queries("states_rowsTotal"),
                ),
                graph(
                    "Memory of state",
                    "Memory that a query uses for the state of windows and sessions.",
                    "bytes",
                    of_queries("states_usedBytes"),
                ),
                graph(
                    "Watermark",
                    "Event time before which a query no longer accepts late rows.",
                    "dateTimeAsIso",
                    of_queries("eventTime_watermark"),
                ),
            ),
        ),
        Row(
            "Executors",
            (
                graph(
                    "Tasks under way",
                    "Tasks in progress, by executor.",
                    "short",
                    each("metrics_executor_activeTasks"),
                ),
                graph(
                    "Completed tasks",
                    "Tasks completed per second.",
                    "cps",
                    growth("metrics_executor_completedTasks_total"),
                ),
                graph(
                    "Failed tasks",
                    "Tasks failed per second; Spark tries each task four times.",
                    "cps",
                    growth("metrics_executor_failedTasks_total"),
                ),
                graph(
                    "Garbage collection",
                    "Seconds per second that tasks spend on garbage collection.",
                    "percentunit",
                    growth("metrics_executor_totalGCTime_seconds_total"),
                ),
                graph(
                    "Heap", "Heap memory of the JVM.", "bytes", each("metrics_executor_JVMHeapMemory_bytes")
                ),
                graph(
                    "Shuffle written",
                    "Bytes per second written for shuffles.",
                    "Bps",
                    growth("metrics_executor_totalShuffleWrite_bytes_total"),
                ),
            ),
        ),
    ),
)
