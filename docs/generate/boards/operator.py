"""Board with the activity, the backlog and the failures of the operator."""

from __future__ import annotations

from typing import Final

from boards.vocabulary import PER_SECOND, Board, Row, Variable, graph, number, per_second, quantile

OPERATOR: Final = 'namespace=~"$namespace"'
NAMESPACE: Final = Variable(
    name="namespace", label="Namespace", query="label_values(fairlead_operator_leader, namespace)"
)

CONDITION: Final = "fairlead_operator_condition"
RESOURCE: Final = "{{resource_namespace}}/{{resource}}"
OF_RESOURCE: Final = "max by (resource_namespace, resource)"
CLUSTERS: Final = f'{OF_RESOURCE} ({CONDITION}{{{OPERATOR}, kind="Cluster", condition="Ready"}})'
"""PromQL expression with the value 1 for each Cluster."""


def clusters_with(selector: str) -> str:
    """Return the number of Clusters with a condition, or 0 if there are none."""
    return f"count({OF_RESOURCE} ({CONDITION}{{{OPERATOR}, {selector}}})) or 0 * count({CLUSTERS})"


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
                    "Resources whose condition Ready is not True.",
                    f"sum(max by (kind) (fairlead_operator_resources_not_ready{{{OPERATOR}}}))",
                ),
                number(
                    "Paused",
                    "Resources that are paused by annotation.",
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
            "Resources",
            (
                number(
                    "Clusters not ready",
                    "Clusters whose condition Ready is not True.",
                    clusters_with('kind="Cluster", condition="Ready", status!="True"'),
                ),
                number(
                    "Rolls blocked",
                    "Clusters whose brokers wait for a restart that is not allowed.",
                    clusters_with('condition="RollBlocked", status="True"'),
                ),
                number(
                    "Other changes blocked",
                    "Clusters that can neither remove brokers nor enlarge volumes as asked.",
                    clusters_with('condition=~"ScaleDownBlocked|StorageBlocked", status="True"'),
                ),
                number(
                    "Etcd not healthy",
                    "Clusters whose managed etcd is not healthy.",
                    clusters_with('condition="EtcdHealthy", status!="True", reason!="External"'),
                ),
                number(
                    "Etcd without quorum",
                    "Clusters whose managed etcd has too few members left.",
                    clusters_with('condition="EtcdHealthy", reason="QuorumLost"'),
                ),
                number(
                    "Warnings",
                    "Clusters with the condition Warning: a part of the spec is ignored or not recommended.",
                    clusters_with('kind="Cluster", condition="Warning", status="True"'),
                ),
                graph(
                    "Which resource is not ready",
                    "Resources whose condition Ready is not True, with the reason; at most 20.",
                    "short",
                    (
                        f"topk(20, max by (kind, resource_namespace, resource, reason)"
                        f' ({CONDITION}{{{OPERATOR}, condition="Ready", status!="True"}}))'
                        f" or 0 * {CLUSTERS}",
                        f"{{{{kind}}}} {RESOURCE} {{{{reason}}}}",
                    ),
                ),
                graph(
                    "Which change is blocked",
                    "Blocked rolls, removals of brokers and enlargements of volumes, with the reason.",
                    "short",
                    (
                        f"max by (resource_namespace, resource, condition, reason)"
                        f' ({CONDITION}{{{OPERATOR}, condition=~"(Roll|ScaleDown|Storage)Blocked", status="True"}})'
                        f" or 0 * {CLUSTERS}",
                        f"{RESOURCE} {{{{condition}}}} {{{{reason}}}}",
                    ),
                ),
                graph(
                    "State of etcd",
                    "Reason of the condition EtcdHealthy of each Cluster.",
                    "short",
                    (
                        f"max by (resource_namespace, resource, reason)"
                        f' ({CONDITION}{{{OPERATOR}, condition="EtcdHealthy"}})',
                        f"{RESOURCE} {{{{reason}}}}",
                    ),
                ),
                graph(
                    "What is in progress",
                    "Changes of resources that the operator carries out.",
                    "short",
                    (
                        f"max by (kind, resource_namespace, resource, reason)"
                        f' ({CONDITION}{{{OPERATOR}, condition="Progressing", status="True"}})'
                        f" or 0 * {CLUSTERS}",
                        f"{{{{kind}}}} {RESOURCE} {{{{reason}}}}",
                    ),
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
                    "Resources whose condition Ready is not True.",
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
