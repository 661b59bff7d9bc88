"""The operator: does it act, does it keep up, what fails."""

from __future__ import annotations

from typing import Final

from boards.vocabulary import PER_SECOND, Board, Row, Variable, graph, number, per_second, quantile

OPERATOR: Final = 'namespace=~"$namespace"'
NAMESPACE: Final = Variable(
    name="namespace", label="Namespace", query="label_values(fairlead_operator_leader, namespace)"
)

BOARD: Final = Board(
    name="operator",
    title="Fairlead / Operator",
    description="Passes of reconcile, the queue, requests to the API server, and the resources.",
    variables=(NAMESPACE,),
    rows=(
        Row(
            "State",
            (
                number(
                    "Operators that act",
                    "Processes that hold the Lease; 1 unless one hands over to the next.",
                    f"sum(fairlead_operator_leader{{{OPERATOR}}})",
                    bad_below=1,
                    bad_from=2,
                ),
                number(
                    "Clusters",
                    "Clusters that are seen.",
                    f'max(fairlead_operator_resources{{{OPERATOR}, kind="Cluster"}})',
                    bad_from=None,
                ),
                number(
                    "Topics",
                    "Topics that are seen.",
                    f'max(fairlead_operator_resources{{{OPERATOR}, kind="Topic"}})',
                    bad_from=None,
                ),
                number(
                    "Not ready",
                    "Clusters and Topics whose condition Ready is not True.",
                    f"sum(max by (kind) (fairlead_operator_resources_not_ready{{{OPERATOR}}}))",
                ),
                number(
                    "Paused",
                    "Clusters and Topics that are paused by annotation.",
                    f"sum(max by (kind) (fairlead_operator_resources_paused{{{OPERATOR}}}))",
                ),
                number(
                    "Silence of watches",
                    "Time since the thread that watches gave a sign of life.",
                    f"max(fairlead_operator_watch_age_seconds{{{OPERATOR}}})",
                    unit="s",
                    bad_from=120,
                ),
            ),
        ),
        Row(
            "Work",
            (
                graph(
                    "Passes",
                    "Passes of reconcile by kind and result.",
                    "cps",
                    per_second(
                        "fairlead_operator_reconcile_total", OPERATOR, "kind, result", "{{kind}} {{result}}"
                    ),
                ),
                graph(
                    "Duration of passes, 95 %",
                    "How long a pass takes, by kind.",
                    "s",
                    quantile(0.95, "fairlead_operator_reconcile_seconds", OPERATOR, "kind"),
                ),
                graph(
                    "Keys that wait",
                    "Resources that wait to be looked at.",
                    "short",
                    (f"sum by (pod) (fairlead_operator_queue_depth{{{OPERATOR}}})", "{{pod}} waiting"),
                ),
                graph(
                    "Keys that fail",
                    "Resources whose last pass failed, by kind.",
                    "short",
                    (
                        f"sum by (kind) (fairlead_operator_queue_failing{{{OPERATOR}}})"
                        f" or 0 * sum by (kind) (fairlead_operator_resources{{{OPERATOR}}})",
                        "{{kind}}",
                    ),
                ),
                graph(
                    "Requests to the API server",
                    "By verb and status; `none` where no answer came.",
                    "reqps",
                    per_second(
                        "fairlead_operator_api_requests_total",
                        OPERATOR,
                        "verb, status",
                        "{{verb}} {{status}}",
                    ),
                ),
                graph(
                    "Resources not ready",
                    "Clusters and Topics whose condition Ready is not True.",
                    "short",
                    (f"max by (kind) (fairlead_operator_resources_not_ready{{{OPERATOR}}})", "{{kind}}"),
                ),
            ),
        ),
        Row(
            "Process",
            (
                graph(
                    "Processor of the operator",
                    "Processors' time used; 1 is one processor.",
                    "short",
                    (
                        f"sum by (pod) (rate(process_cpu_seconds_total{{{OPERATOR}}}{PER_SECOND})"
                        f" and on (namespace, pod) fairlead_operator_leader{{{OPERATOR}}})",
                        "{{pod}}",
                    ),
                ),
                graph(
                    "Memory of the operator",
                    "Memory of the process.",
                    "bytes",
                    (
                        f"sum by (pod) (process_resident_memory_bytes{{{OPERATOR}}}"
                        f" and on (namespace, pod) fairlead_operator_leader{{{OPERATOR}}})",
                        "{{pod}}",
                    ),
                ),
            ),
        ),
    ),
)
