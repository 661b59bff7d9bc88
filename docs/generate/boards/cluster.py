"""The cluster at a glance: is it well, how much goes through it, how quickly."""

from __future__ import annotations

from typing import Final

from boards.vocabulary import (
    CLUSTER,
    CLUSTER_NAME,
    NAMESPACE,
    Board,
    Row,
    graph,
    number,
    per_second,
    quantile,
    quantiles,
)

PRODUCE: Final = f'{CLUSTER}, route=~"produce.*"'

BOARD: Final = Board(
    name="cluster",
    title="Fairlead / Cluster",
    description="Health, throughput, latency and space of one cluster.",
    variables=(NAMESPACE, CLUSTER_NAME),
    rows=(
        Row(
            "Health",
            (
                number(
                    "Brokers",
                    "Brokers that answer Prometheus.",
                    f"count(fairlead_build_info{{{CLUSTER}}})",
                    bad_from=None,
                    bad_below=1,
                ),
                number(
                    "Controllers",
                    "Brokers that hold the controller's office; anything but 1 is wrong for more than a moment.",
                    f"sum(fairlead_controller_active{{{CLUSTER}}})",
                    bad_below=1,
                    bad_from=2,
                ),
                number(
                    "Partitions without leader",
                    "Nobody can write or read them.",
                    f"sum(fairlead_leaderless_partitions{{{CLUSTER}}})",
                ),
                number(
                    "Under min ISR",
                    "Partitions that acknowledge nothing with acks=all.",
                    f"sum(fairlead_under_min_isr_partitions{{{CLUSTER}}})",
                ),
                number(
                    "Under-replicated",
                    "Partitions with fewer replicas in sync than they have replicas.",
                    f"sum(fairlead_under_replicated_partitions{{{CLUSTER}}})",
                ),
                number(
                    "Damaged ranges",
                    "Ranges of partitions that cannot be read and whose loss nobody has accepted.",
                    f"sum(fairlead_partition_damaged_ranges{{{CLUSTER}}})",
                ),
            ),
        ),
        Row(
            "Throughput",
            (
                graph(
                    "Records",
                    "Records appended and answered to readers.",
                    "cps",
                    per_second("fairlead_records_total", CLUSTER, "direction", "{{direction}}"),
                ),
                graph(
                    "Bytes",
                    "Bytes of batches as stored, appended and answered to readers.",
                    "Bps",
                    per_second("fairlead_produce_bytes_total", CLUSTER, "fairlead_cluster", "in"),
                    per_second("fairlead_fetch_bytes_total", CLUSTER, "fairlead_cluster", "out"),
                ),
                graph(
                    "Requests by route",
                    "Requests of clients and brokers, by what they ask for.",
                    "reqps",
                    per_second("fairlead_request_duration_seconds_count", CLUSTER, "route", "{{route}}"),
                ),
                graph(
                    "Answers by status",
                    "HTTP statuses of all answers; 499 is a client that went away before.",
                    "reqps",
                    per_second("fairlead_request_duration_seconds_count", CLUSTER, "status", "{{status}}"),
                ),
            ),
        ),
        Row(
            "Latency",
            (
                graph(
                    "Produce latency",
                    "From the head of a produce request to the end of its answer, replication included.",
                    "s",
                    *quantiles("fairlead_request_duration_seconds", PRODUCE),
                ),
                graph(
                    "Fetch latency without waiting",
                    "Time of reading what a fetch asks for; its wait for records is not part of it.",
                    "s",
                    *quantiles("fairlead_fetch_read_seconds", CLUSTER),
                ),
                graph(
                    "Sync latency",
                    "One round of syncs over all partitions written to.",
                    "s",
                    *quantiles("fairlead_append_fsync_seconds", CLUSTER),
                ),
                graph(
                    "Coordination latency, 95 %",
                    "Calls to etcd or the embedded store.",
                    "s",
                    quantile(0.95, "fairlead_coordination_seconds", CLUSTER, "call"),
                ),
            ),
        ),
        Row(
            "Replication",
            (
                graph(
                    "Elections",
                    "Leaders that were installed; unclean ones may have lost records.",
                    "cps",
                    per_second("fairlead_leader_elections_total", CLUSTER, "kind", "{{kind}}"),
                ),
                graph(
                    "Changes of the in-sync replicas",
                    "Replicas that fell out of sync, and that came into sync.",
                    "cps",
                    per_second("fairlead_isr_shrinks_total", CLUSTER, "fairlead_cluster", "out"),
                    per_second("fairlead_isr_expands_total", CLUSTER, "fairlead_cluster", "in"),
                ),
                graph(
                    "Partitions that move",
                    "Partitions that are being moved to other brokers.",
                    "short",
                    (f"sum(fairlead_reassigning_partitions{{{CLUSTER}}})", "moving"),
                ),
                graph(
                    "Lost leases",
                    "Brokers that lost their lease while they ran: paused, overloaded or cut off.",
                    "cps",
                    per_second("fairlead_lost_leases_total", CLUSTER, "broker", "{{broker}}"),
                ),
            ),
        ),
        Row(
            "Space and groups",
            (
                graph(
                    "Free space",
                    "Share of the data directory's file system that is free.",
                    "percentunit",
                    (
                        f"min by (broker) (fairlead_disk_free_bytes{{{CLUSTER}}}"
                        f" / fairlead_disk_size_bytes{{{CLUSTER}}})",
                        "{{broker}}",
                    ),
                ),
                graph(
                    "Stored bytes",
                    "Bytes of the leaders' segments; replicas are not counted.",
                    "bytes",
                    (f"sum(fairlead_partition_size_bytes{{{CLUSTER}}})", "stored"),
                ),
                graph(
                    "Largest lag of groups",
                    "Records that the five groups with the largest lag have not read.",
                    "short",
                    (
                        f"topk(5, sum by (group) (fairlead_group_lag_records{{{CLUSTER}}}))",
                        "{{group}}",
                    ),
                ),
                graph(
                    "Groups and members",
                    "Consumer groups in use, and their members.",
                    "short",
                    (f"sum(fairlead_coordinated_groups{{{CLUSTER}}})", "groups"),
                    (f"sum(fairlead_group_members{{{CLUSTER}}})", "members"),
                ),
            ),
        ),
    ),
)
