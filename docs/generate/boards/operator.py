"""Board with the activity, the backlog and the failures of the operator."""

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
    description="Reconcile passes, the work queue, requests to the API server, and resources.",
    variables=(NAMESPACE,),
    rows=(
        Row(
            "State",
            (
                number(
                    "Operators that act",
                    "Processes that hold the Lease; 1 except during a change of the leader.",
                    f"sum(fairlead_operator_leader{{{OPERATOR}}})",
                    bad_below=1,
                    bad_from=2,
                ),
                number(
                    "Clusters",
                    "Clusters that the operator watches.",
                    f'max(fairlead_operator_resources{{{OPERATOR}, kind="Cluster"}})',
                    bad_from=None,
                ),
                number(
                    "Topics",
                    "Topics that the operator watches.",
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
                    "Time since the last heartbeat of the watch thread.",
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
                    "Reconcile passes, by kind and result.",
                    "cps",
                    per_second(
                        "fairlead_operator_reconcile_total", OPERATOR, "kind, result", "{{kind}} {{result}}"
                    ),
                ),
                graph(
                    "Duration of passes, 95 %",
                    "Duration of a reconcile pass, by kind.",
                    "s",
                    quantile(0.95, "fairlead_operator_reconcile_seconds", OPERATOR, "kind"),
                ),
                graph(
                    "Keys that wait",
                    "Resources that wait for a reconcile pass.",
                    "short",
                    (f"sum by (pod) (fairlead_operator_queue_depth{{{OPERATOR}}})", "{{pod}} waiting"),
                ),
                graph(
                    "Keys that fail",
                    "Resources whose last reconcile pass failed, by kind.",
                    "short",
                    (
                        f"sum by (kind) (fairlead_operator_queue_failing{{{OPERATOR}}})"
                        f" or 0 * sum by (kind) (fairlead_operator_resources{{{OPERATOR}}})",
                        "{{kind}}",
                    ),
                ),
                graph(
                    "Requests to the API server",
                    "Requests to the API server by verb and status; `none` means that no answer arrived.",
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
                    "Processor time used by the operator; 1 means one processor.",
                    "short",
                    (
                        f"sum by (pod) (rate(process_cpu_seconds_total{{{OPERATOR}}}{PER_SECOND})"
                        f" and on (namespace, pod) fairlead_operator_leader{{{OPERATOR}}})",
                        "{{pod}}",
                    ),
                ),
                graph(
                    "Memory of the operator",
                    "Resident memory of the operator.",
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
