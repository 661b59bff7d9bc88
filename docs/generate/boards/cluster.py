"""Board with the health, throughput and latency of a whole cluster."""

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

ETCD: Final = f'{CLUSTER}, fairlead_component="etcd"'
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
                    "Brokers that are the controller; a number other than 1 should last only briefly.",
                    f"sum(fairlead_controller_active{{{CLUSTER}}})",
                    bad_below=1,
                    bad_from=2,
                ),
                number(
                    "Partitions without leader",
                    "Partitions that cannot be written or read because they have no leader.",
                    f"sum(fairlead_leaderless_partitions{{{CLUSTER}}})",
                ),
                number(
                    "Under min ISR",
                    "Partitions that accept no writes with acks=all.",
                    f"sum(fairlead_under_min_isr_partitions{{{CLUSTER}}})",
                ),
                number(
                    "Under-replicated",
                    "Partitions with fewer in-sync replicas than replicas.",
                    f"sum(fairlead_under_replicated_partitions{{{CLUSTER}}})",
                ),
                number(
                    "Damaged ranges",
                    "Ranges of offsets that cannot be read and whose loss has not been accepted.",
                    f"sum(fairlead_partition_damaged_ranges{{{CLUSTER}}})",
                ),
            ),
        ),
        Row(
            "etcd",
            (
                number(
                    "Members",
                    "Members of the managed etcd that answer Prometheus.",
                    f"count(etcd_server_has_leader{{{ETCD}}})",
                    bad_from=None,
                    bad_below=1,
                ),
                number(
                    "Members without leader",
                    "Members of etcd that have no leader; without a quorum, no member has a leader.",
                    f"sum(1 - etcd_server_has_leader{{{ETCD}}})",
                ),
                number(
                    "Fullest store",
                    "Fraction of its quota that the store of a member uses; a full store accepts no writes.",
                    f"max(etcd_mvcc_db_total_size_in_bytes{{{ETCD}}} / etcd_server_quota_backend_bytes{{{ETCD}}})",
                    unit="percentunit",
                    bad_from=0.8,
                ),
                graph(
                    "Sync latency of etcd, 99 %",
                    "Duration of syncs of the members' logs; above 10 ms, the disk is slow for etcd.",
                    "s",
                    quantile(0.99, "etcd_disk_wal_fsync_duration_seconds", ETCD, "pod"),
                ),
                graph(
                    "Changes of etcd's leader",
                    "Changes of the leader that each member has seen, per second.",
                    "cps",
                    per_second("etcd_server_leader_changes_seen_total", ETCD, "pod", "{{pod}}"),
                ),
                graph(
                    "Proposals of etcd",
                    "Writes that wait in etcd, and writes that failed each second.",
                    "short",
                    (f"sum by (pod) (etcd_server_proposals_pending{{{ETCD}}})", "{{pod}} waiting"),
                    per_second("etcd_server_proposals_failed_total", ETCD, "pod", "{{pod}} failed"),
                ),
                graph(
                    "Store of etcd",
                    "Bytes in the store of each member.",
                    "bytes",
                    (f"sum by (pod) (etcd_mvcc_db_total_size_in_bytes{{{ETCD}}})", "{{pod}}"),
                ),
            ),
        ),
        Row(
            "Throughput",
            (
                graph(
                    "Records",
                    "Records appended, and records sent to consumers.",
                    "cps",
                    per_second("fairlead_records_total", CLUSTER, "direction", "{{direction}}"),
                ),
                graph(
                    "Bytes",
                    "Bytes of batches in their stored size, appended and sent to consumers.",
                    "Bps",
                    per_second("fairlead_produce_bytes_total", CLUSTER, "fairlead_cluster", "in"),
                    per_second("fairlead_fetch_bytes_total", CLUSTER, "fairlead_cluster", "out"),
                ),
                graph(
                    "Requests by route",
                    "Requests from clients and brokers, by route.",
                    "reqps",
                    per_second("fairlead_request_duration_seconds_count", CLUSTER, "route", "{{route}}"),
                ),
                graph(
                    "Answers by status",
                    "HTTP statuses of all answers; 499 means that the client disconnected before the answer.",
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
                    "Time from the head of a produce request to the end of its answer, including replication.",
                    "s",
                    *quantiles("fairlead_request_duration_seconds", PRODUCE),
                ),
                graph(
                    "Fetch latency without waiting",
                    "Time to read the requested records of a fetch, without the time spent waiting for records.",
                    "s",
                    *quantiles("fairlead_fetch_read_seconds", CLUSTER),
                ),
                graph(
                    "Sync latency",
                    "Duration of one round of syncs over all written partitions.",
                    "s",
                    *quantiles("fairlead_append_fsync_seconds", CLUSTER),
                ),
                graph(
                    "Coordination latency, 95 %",
                    "Duration of calls to etcd or to the embedded store.",
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
                    "Elections of leaders; unclean elections may have lost records.",
                    "cps",
                    per_second("fairlead_leader_elections_total", CLUSTER, "kind", "{{kind}}"),
                ),
                graph(
                    "Vacancies of write quorums",
                    "Partitions with a write quorum that have no leader until more voters answer the controller.",
                    "short",
                    (f"sum(fairlead_quorum_vacant_partitions{{{CLUSTER}}})", "vacancies"),
                ),
                graph(
                    "Duration of quorum elections",
                    "Time from the start of a vacancy to the appointment of its leader.",
                    "s",
                    quantile(0.95, "fairlead_quorum_election_seconds", CLUSTER, "fairlead_cluster"),
                ),
                graph(
                    "Changes of the in-sync replicas",
                    "Replicas that fell out of sync, and replicas that are in sync again.",
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
                    "Brokers that lost their lease because they were paused, overloaded or disconnected.",
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
                    "Fraction of free space on the file system of the data directory.",
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
                    "Unread records of the five groups with the largest lag.",
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
