"""Board with the lag of consumer groups in records and in time."""

from __future__ import annotations

from typing import Final

from boards.vocabulary import (
    CLUSTER,
    CLUSTER_NAME,
    NAMESPACE,
    PER_SECOND,
    Board,
    Row,
    Variable,
    graph,
    number,
    per_second,
    quantiles,
)

GROUP: Final = Variable(
    name="group",
    label="Group",
    query=f"label_values(fairlead_group_lag_records{{{CLUSTER}}}, group)",
    several=True,
)
GROUPS: Final = f'{CLUSTER}, group=~"$group"'
# The committed offset of a group is the log end offset, which the leader exposes, minus the lag, which the coordinator
# exposes.
COMMITTED: Final = (
    f"max by (topic, partition) (fairlead_partition_log_end_offset{{{CLUSTER}}}) - on (topic, partition) "
    f"group_right () max by (group, topic, partition) (fairlead_group_lag_records{{{GROUPS}}})"
)

BOARD: Final = Board(
    name="groups",
    title="Fairlead / Groups and lag",
    description="Lag of consumer groups in records and in time, their members and their commits.",
    variables=(NAMESPACE, CLUSTER_NAME, GROUP),
    rows=(
        Row(
            "Now",
            (
                number(
                    "Groups in use",
                    "Groups that have a coordinator.",
                    f"sum(fairlead_coordinated_groups{{{CLUSTER}}})",
                    bad_from=None,
                ),
                number(
                    "Members",
                    "Members of all groups.",
                    f"sum(fairlead_group_members{{{CLUSTER}}})",
                    bad_from=None,
                ),
                number(
                    "Records behind",
                    "Total number of records that the chosen groups have not read.",
                    f"sum(fairlead_group_lag_records{{{GROUPS}}})",
                    bad_from=None,
                ),
                number(
                    "Time behind",
                    "Age of the oldest record that a chosen group has not read.",
                    f"max(fairlead_group_lag_seconds{{{GROUPS}}})",
                    unit="s",
                    bad_from=300,
                ),
                number(
                    "Partitions not shown",
                    "Partitions of groups whose lag is not exposed, because a broker exposes only a limited number.",
                    f"sum(fairlead_group_lag_hidden_partitions{{{CLUSTER}}})",
                ),
            ),
        ),
        Row(
            "Lag",
            (
                graph(
                    "Lag in records",
                    "Unread records, by group and topic.",
                    "short",
                    (
                        f"sum by (group, topic) (fairlead_group_lag_records{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                ),
                graph(
                    "Lag in time",
                    "Age of the oldest record that is not read, by group and topic.",
                    "s",
                    (
                        f"max by (group, topic) (fairlead_group_lag_seconds{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                ),
                graph(
                    "Partitions furthest behind",
                    "The ten partitions with the most unread records.",
                    "short",
                    (
                        "topk(10, max by (group, topic, partition)"
                        f" (fairlead_group_lag_records{{{GROUPS}}}))",
                        "{{group}} {{topic}}-{{partition}}",
                    ),
                ),
                graph(
                    "Committed offsets",
                    "Committed offsets of the chosen groups by partition: log end offset minus lag.",
                    "short",
                    (COMMITTED, "{{group}} {{topic}}-{{partition}}"),
                ),
                graph(
                    "Written and read",
                    "Records appended and records sent to consumers in the whole cluster.",
                    "cps",
                    per_second("fairlead_records_total", CLUSTER, "direction", "{{direction}}"),
                ),
                graph(
                    "Rebalances",
                    "Number of rebalances that began, by coordinator.",
                    "cps",
                    per_second("fairlead_group_rebalances_total", CLUSTER, "broker", "{{broker}}"),
                ),
            ),
        ),
        Row(
            "Commits",
            (
                graph(
                    "Commit latency",
                    "Time from the commit of offsets until the offsets are stored.",
                    "s",
                    *quantiles("fairlead_group_commit_seconds", CLUSTER),
                ),
                graph(
                    "Commits and transactions",
                    "Commits of groups, and transactions that stored commits; commits of a group share transactions.",
                    "cps",
                    (f"sum(rate(fairlead_group_commit_seconds_count{{{CLUSTER}}}{PER_SECOND}))", "commits"),
                    (
                        f"sum(rate(fairlead_group_offset_transactions_total{{{CLUSTER}}}{PER_SECOND}))",
                        "transactions",
                    ),
                ),
            ),
        ),
        Row(
            "Transactions",
            (
                graph(
                    "Decisions",
                    "Transactions decided, by outcome and reason.",
                    "cps",
                    (
                        f"sum by (outcome, reason) (rate(fairlead_transactions_total{{{CLUSTER}}}{PER_SECOND}))",
                        "{{outcome}} {{reason}}",
                    ),
                ),
                graph(
                    "Latency of transaction commits",
                    "Time from the request of a commit until its decision is stored.",
                    "s",
                    *quantiles("fairlead_transaction_commit_seconds", CLUSTER),
                ),
                graph(
                    "Time until transactions have ended",
                    "Time from a commit until every partition of the transaction has confirmed its marker.",
                    "s",
                    *quantiles("fairlead_transaction_end_seconds", CLUSTER),
                ),
                graph(
                    "Markers and reads of producers' records",
                    "Markers appended by leaders, and records read to learn the outcomes of open transactions.",
                    "cps",
                    (
                        f"sum by (outcome) (rate(fairlead_transaction_markers_total{{{CLUSTER}}}{PER_SECOND}))",
                        "markers {{outcome}}",
                    ),
                    (f"sum(rate(fairlead_transaction_looks_total{{{CLUSTER}}}{PER_SECOND}))", "reads"),
                ),
                graph(
                    "Unstable records",
                    "Records from the last stable offset to the high watermark, in the partition that has the most.",
                    "short",
                    (f"max(fairlead_partition_unstable_records{{{CLUSTER}}})", "records"),
                ),
                graph(
                    "Oldest open transaction",
                    "Age of the oldest open transaction, for which readers of committed records wait.",
                    "s",
                    (f"max(fairlead_transaction_oldest_open_seconds{{{CLUSTER}}})", "age"),
                ),
                graph(
                    "Unfinished partitions",
                    "Partitions that have not confirmed commits.",
                    "short",
                    (f"sum(fairlead_transaction_unfinished_partitions{{{CLUSTER}}})", "partitions"),
                ),
            ),
        ),
    ),
)
