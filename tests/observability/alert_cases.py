"""For each alert: series for which it fires, with its labels and description, and series for which it does not fire.

`test_alerts.py` reads the cases and turns them into input for promtool.
"""

from __future__ import annotations

from typing import Final

from alert_cases_links import LINKS
from alert_cases_operator import OPERATOR
from alert_cases_quorum import QUORUM
from alert_cases_security import SECURITY
from alert_series import BROKER, MIB, WHERE, Case, histogram, labelled, of_broker, of_operator, pair

PARTITIONS: Final = (
    *pair(
        "FairleadLeaderlessPartitions",
        3,
        {of_broker("fairlead_leaderless_partitions"): "0 2 2 2"},
        "2 partitions of cluster main in shop have no leader: clients can neither write nor read them.",
        WHERE,
        {of_broker("fairlead_leaderless_partitions"): "0 2 0 2"},
    ),
    *pair(
        "FairleadUnderMinIsrPartitions",
        5,
        {of_broker("fairlead_under_min_isr_partitions"): "4+0x5"},
        "4 partitions of cluster main in shop have fewer replicas in sync than min.insync.replicas.",
        WHERE,
        {of_broker("fairlead_under_min_isr_partitions"): "4 4 0 0 4 4"},
    ),
    *pair(
        "FairleadUnderReplicatedPartitions",
        12,
        {of_broker("fairlead_under_replicated_partitions"): "3+0x12"},
        "3 partitions of cluster main in shop have had too few replicas in sync for 10 minutes.",
        WHERE,
        {of_broker("fairlead_under_replicated_partitions"): "3+0x8 0+0x4"},
    ),
    *pair(
        "FairleadControllerCount",
        4,
        {
            of_broker("fairlead_controller_active"): "1+0x4",
            labelled("fairlead_controller_active", broker="main-a-1"): "1+0x4",
        },
        "2 brokers of cluster main in shop report that they are the controller; it should be 1.",
        WHERE,
        {
            of_broker("fairlead_controller_active"): "1 1 0 0 0",
            labelled("fairlead_controller_active", broker="main-a-1"): "0 0 0 1 1",
        },
    ),
    # One controller in each of two Kubernetes clusters, whose Fairlead clusters have the same name.
    Case(
        alert="FairleadControllerCount",
        series={
            of_broker("fairlead_controller_active", cluster="eu"): "1+0x4",
            of_broker("fairlead_controller_active", cluster="us"): "1+0x4",
        },
        minute=4,
    ),
    *pair(
        "FairleadUnstableLeadership",
        25,
        {
            of_broker("fairlead_leader_elections_total", kind="clean"): "0+10x25",
            of_broker("fairlead_leader_partitions"): "6+0x25",
        },
        "150 leaders were elected within 15 minutes in cluster main in shop, more than three for each partition.",
        WHERE,
        {
            of_broker("fairlead_leader_elections_total", kind="clean"): "0+1x25",
            of_broker("fairlead_leader_partitions"): "6+0x25",
        },
    ),
    *pair(
        "FairleadUncleanElections",
        16,
        {of_broker("fairlead_leader_elections_total", kind="unclean"): "0+1x16"},
        "There were 15 unclean elections within 15 minutes in cluster main in shop.",
        WHERE,
        {
            of_broker("fairlead_leader_elections_total", kind="unclean"): "2+0x16",
            of_broker("fairlead_leader_elections_total", kind="clean"): "0+1x16",
        },
    ),
)
STORAGE: Final = (
    *pair(
        "FairleadDiskAlmostFull",
        6,
        {
            of_broker("fairlead_disk_free_bytes"): "10+0x6",
            of_broker("fairlead_disk_size_bytes"): "100+0x6",
        },
        "Only 10% of the data directory's file system is free on broker main-a-0 of cluster main in shop.",
        BROKER,
        {
            of_broker("fairlead_disk_free_bytes"): "15+0x6",
            of_broker("fairlead_disk_size_bytes"): "100+0x6",
        },
    ),
    *pair(
        "FairleadDiskFillsUp",
        60,
        {
            of_broker("fairlead_disk_free_bytes"): "61440-1024x60",
            of_broker("fairlead_disk_size_bytes"): "1000000+0x60",
        },
        "At the rate of the last 6 hours, the disk of broker main-a-0 of cluster main in shop will lack 1.406MiB in 24"
        " hours.",
        BROKER,
        {
            of_broker("fairlead_disk_free_bytes"): "61440-1x60",
            of_broker("fairlead_disk_size_bytes"): "1000000+0x60",
        },
    ),
    *pair(
        "FairleadStorageFailed",
        1,
        {of_broker("fairlead_storage_failed"): "0 1"},
        "A write or a sync on broker main-a-0 of cluster main in shop has failed; it refuses writes until it"
        " is restarted.",
        BROKER,
        {of_broker("fairlead_storage_failed"): "1 0"},
    ),
    *pair(
        "FairleadDamagedRanges",
        3,
        {of_broker("fairlead_partition_damaged_ranges", topic="orders", partition="2"): "1+0x3"},
        "1 ranges of orders-2 in cluster main in shop are damaged.",
        {**WHERE, "topic": "orders", "partition": "2"},
        {of_broker("fairlead_partition_damaged_ranges", topic="orders", partition="2"): "0+0x3"},
    ),
    *pair(
        "FairleadUncleanable",
        31,
        {of_broker("fairlead_cleaner_uncleanable_partitions"): "2+0x31"},
        "Cleaning of 2 partitions fails on broker main-a-0 of cluster main in shop; their logs grow.",
        BROKER,
        {of_broker("fairlead_cleaner_uncleanable_partitions"): "2+0x20 0+0x11"},
    ),
    *pair(
        "FairleadDistrustedReplicas",
        7,
        {
            of_broker("fairlead_refused_replicas"): "1+0x7",
            of_broker("fairlead_quarantined_replicas"): "2+0x7",
        },
        "3 replicas on broker main-a-0 of cluster main in shop are refused or quarantined.",
        BROKER,
        {
            of_broker("fairlead_refused_replicas"): "0+0x7",
            of_broker("fairlead_quarantined_replicas"): "0+0x7",
        },
    ),
)
ETCD: Final = (
    *pair(
        "FairleadEtcdAlmostFull",
        12,
        {
            labelled(
                "etcd_mvcc_db_total_size_in_bytes", fairlead_component="etcd", pod="main-etcd-1"
            ): "90+0x12",
            labelled(
                "etcd_server_quota_backend_bytes", fairlead_component="etcd", pod="main-etcd-1"
            ): "100+0x12",
            labelled(
                "etcd_mvcc_db_total_size_in_bytes", fairlead_component="etcd", pod="main-etcd-2"
            ): "70+0x12",
            labelled(
                "etcd_server_quota_backend_bytes", fairlead_component="etcd", pod="main-etcd-2"
            ): "100+0x12",
        },
        "The etcd of cluster main in shop uses 90% of its store quota.",
        WHERE,
        {
            labelled("etcd_mvcc_db_total_size_in_bytes", fairlead_component="etcd"): "80+0x12",
            labelled("etcd_server_quota_backend_bytes", fairlead_component="etcd"): "100+0x12",
            # The etcd of Kubernetes itself, which has the same metrics.
            'etcd_mvcc_db_total_size_in_bytes{job="kube-etcd"}': "90+0x12",
            'etcd_server_quota_backend_bytes{job="kube-etcd"}': "100+0x12",
        },
    ),
)
BROKERS: Final = (
    *pair(
        "FairleadScrapeFailed",
        7,
        {of_broker("up", fairlead_component="broker", instance="10.0.0.1:9522"): "1 0+0x6"},
        "The broker 10.0.0.1:9522 in shop has not answered Prometheus for 5 minutes.",
        {**BROKER, "fairlead_component": "broker", "instance": "10.0.0.1:9522"},
        {
            of_broker("up", fairlead_component="broker", instance="10.0.0.1:9522"): "1+0x7",
            'up{job="something else"}': "0+0x7",
        },
    ),
    *pair(
        "FairleadBrokerRestarts",
        10,
        {of_broker("process_start_time_seconds", fairlead_component="broker"): "1 2 3 4 5 5 5 5 5 5 5"},
        "Broker main-a-0 of cluster main in shop was started 4 times within an hour.",
        {**BROKER, "fairlead_component": "broker"},
        {of_broker("process_start_time_seconds", fairlead_component="broker"): "1 2 2 2 2 2 2 2 2 2 2"},
    ),
    *pair(
        "FairleadLostLeases",
        30,
        {of_broker("fairlead_lost_leases_total"): "0+1x30"},
        "Broker main-a-0 of cluster main in shop lost its lease 30 times within 30 minutes, and other"
        " brokers took over from it.",
        BROKER,
        {of_broker("fairlead_lost_leases_total"): "7+0x30"},
    ),
    *pair(
        "FairleadEventLoopLate",
        20,
        histogram("fairlead_event_loop_lag_seconds", slow="0+100x20", quick="0+10x20"),
        "The event loop of broker main-a-0 of cluster main in shop is 495ms late at the 99th percentile.",
        BROKER,
        histogram("fairlead_event_loop_lag_seconds", slow="0+100x20", quick="0+100x20"),
    ),
    *pair(
        "FairleadMemoryAlmostFull",
        7,
        {
            of_broker("fairlead_memory_used_bytes"): "950+0x7",
            of_broker("fairlead_memory_limit_bytes"): "1000+0x7",
        },
        "Broker main-a-0 of cluster main in shop uses 95% of the memory that it may use.",
        BROKER,
        {
            of_broker("fairlead_memory_used_bytes"): "900+0x7",
            of_broker("fairlead_memory_limit_bytes"): "1000+0x7",
        },
    ),
    *pair(
        "FairleadMemoryFillsUp",
        400,
        # An increase of one MiB an hour, from three quarters of 64 MiB.
        {
            of_broker("fairlead_memory_used_bytes"): f"{48 * MIB}+{MIB / 15}x100",
            of_broker("fairlead_memory_limit_bytes"): f"{64 * MIB}+0x100",
            of_broker("process_start_time_seconds", fairlead_component="broker"): "0+0x100",
        },
        "At the rate of the last 6 hours, broker main-a-0 of cluster main in shop will lack 14.67MiB of memory in 24"
        " hours.",
        BROKER,
        {
            of_broker("fairlead_memory_used_bytes"): f"{48 * MIB}+{MIB / 150}x100",
            of_broker("fairlead_memory_limit_bytes"): f"{64 * MIB}+0x100",
            of_broker("process_start_time_seconds", fairlead_component="broker"): "0+0x100",
        },
        step_minutes=4,
    ),
    # Memory increases by one MiB an hour, but the process was started 100 minutes ago: too recently for a forecast.
    Case(
        alert="FairleadMemoryFillsUp",
        series={
            of_broker("fairlead_memory_used_bytes"): f"{48 * MIB}+{MIB / 15}x100",
            of_broker("fairlead_memory_limit_bytes"): f"{64 * MIB}+0x100",
            of_broker("process_start_time_seconds", fairlead_component="broker"): "0+0x75 18000+0x25",
        },
        minute=400,
        step_minutes=4,
    ),
    # Memory increases by one MiB an hour from a low value: less than half of the memory is used.
    Case(
        alert="FairleadMemoryFillsUp",
        series={
            of_broker("fairlead_memory_used_bytes"): f"{8 * MIB}+{MIB / 15}x100",
            of_broker("fairlead_memory_limit_bytes"): f"{32 * MIB}+0x100",
            of_broker("process_start_time_seconds", fairlead_component="broker"): "0+0x100",
        },
        minute=400,
        step_minutes=4,
    ),
    *pair(
        "FairleadOpenFiles",
        12,
        {
            of_broker("process_open_fds", fairlead_component="broker"): "900+0x12",
            of_broker("process_max_fds", fairlead_component="broker"): "1000+0x12",
        },
        "Broker main-a-0 of cluster main in shop uses 90% of its file descriptors.",
        {**BROKER, "fairlead_component": "broker"},
        {
            of_broker("process_open_fds", fairlead_component="broker"): "800+0x12",
            of_broker("process_max_fds", fairlead_component="broker"): "1000+0x12",
        },
    ),
)
REQUESTS: Final = (
    *pair(
        "FairleadRequestErrors",
        20,
        {
            of_broker("fairlead_request_duration_seconds_count", route="produce", status="503"): "0+6x20",
            of_broker("fairlead_request_duration_seconds_count", route="produce", status="200"): "0+94x20",
        },
        "6% of the requests to cluster main in shop are answered with a status of 500 or above.",
        WHERE,
        {
            of_broker("fairlead_request_duration_seconds_count", route="produce", status="404"): "0+6x20",
            of_broker("fairlead_request_duration_seconds_count", route="produce", status="200"): "0+94x20",
        },
    ),
    *pair(
        "FairleadProduceErrors",
        20,
        {
            of_broker("fairlead_produce_batches_total", code="not_enough_replicas"): "0+30x20",
            of_broker("fairlead_produce_batches_total", code="ok"): "0+70x20",
        },
        "30% of the batches sent to cluster main in shop are not stored.",
        WHERE,
        {
            of_broker("fairlead_produce_batches_total", code="not_leader"): "0+1x5 5+0x15",
            of_broker("fairlead_produce_batches_total", code="ok"): "0+70x20",
        },
    ),
    *pair(
        "FairleadProduceSlow",
        20,
        histogram(
            "fairlead_request_duration_seconds",
            slow="0+100x20",
            quick="0+90x20",
            route="produce",
            status="200",
        ),
        "The 95th percentile of produce requests to cluster main in shop is 275ms.",
        WHERE,
        {
            **histogram(
                "fairlead_request_duration_seconds",
                slow="0+100x20",
                quick="0+99x20",
                route="produce",
                status="200",
            ),
            **histogram(
                "fairlead_request_duration_seconds",
                slow="0+100x20",
                quick="0+0x20",
                route="fetch",
                status="200",
            ),
        },
    ),
    *pair(
        "FairleadFetchSlow",
        20,
        histogram("fairlead_fetch_read_seconds", slow="0+100x20", quick="0+90x20"),
        "The 95th percentile of reads for fetches in cluster main in shop is 275ms, not counting the wait for records.",
        WHERE,
        histogram("fairlead_fetch_read_seconds", slow="0+100x20", quick="0+99x20"),
    ),
)


def lag(records: str, seconds: str, partition: str = "0") -> dict[str, str]:
    """Return the series of a group's lag in a partition."""
    of_group = {"group": "billing", "topic": "orders", "partition": partition}
    return {
        of_broker("fairlead_group_lag_records", **of_group): records,
        of_broker("fairlead_group_lag_seconds", **of_group): seconds,
    }


GROUPS: Final = (
    *pair(
        "FairleadGroupLagGrowing",
        30,
        lag("0+1000x30", "600+0x30"),
        "Group billing is 10m 0s behind in topic orders of cluster main in shop, and its lag is increasing.",
        {**WHERE, "group": "billing", "topic": "orders"},
        # A large lag that decreases.
        lag("90000-1000x30", "600+0x30"),
    ),
    *pair(
        "FairleadGroupStandsStill",
        30,
        # No program produces or consumes.
        lag("70+0x30", "0+60x30"),
        "Group billing is 30m 0s behind in topic orders of cluster main in shop, and makes no progress.",
        {**WHERE, "group": "billing", "topic": "orders"},
        # Consumption has stopped in one partition, but not in the other.
        lag("70+0x30", "0+60x30") | lag("70+0x30", "600+30x30", partition="1"),
    ),
    *pair(
        "FairleadGroupLagHidden",
        16,
        {of_broker("fairlead_group_lag_hidden_partitions"): "12+0x16"},
        "The lag of 12 partitions that groups read in cluster main in shop is not exposed, because brokers expose only "
        "a limited number.",
        WHERE,
        {of_broker("fairlead_group_lag_hidden_partitions"): "0+0x16"},
    ),
)
TRANSACTIONS: Final = (
    *pair(
        "FairleadTransactionHangs",
        2,
        {of_broker("fairlead_transaction_oldest_open_seconds"): "1000+60x2"},
        "A transaction in cluster main in shop has been open for 18m 40s. Readers of committed records wait for its"
        " end.",
        WHERE,
        {of_broker("fairlead_transaction_oldest_open_seconds"): "100+60x2"},
    ),
    *pair(
        "FairleadTransactionsUnfinished",
        6,
        {of_broker("fairlead_transaction_unfinished_partitions"): "3+0x6"},
        "3 partitions of cluster main in shop have not confirmed the commits of transactions, so readers of committed "
        "records do not get their records.",
        WHERE,
        {of_broker("fairlead_transaction_unfinished_partitions"): "3 0 3 0 3 0 3"},
    ),
)
LATENCY_OF_QUERY: Final = "metrics_fairlead_driver_spark_streaming_flight_windows_latency_Number"
SPARK: Final = (
    *pair(
        "FairleadSparkQueryGone",
        30,
        {of_operator(LATENCY_OF_QUERY, job="spark"): "800+0x10 stale"},
        "Spark exposed metrics of query flight_windows in shop within the last hour, but no longer does.",
        {"namespace": "shop", "query": "flight_windows"},
        # Another driver has continued the query.
        {
            of_operator(LATENCY_OF_QUERY, job="spark", instance="a"): "800+0x10 stale",
            of_operator(LATENCY_OF_QUERY, job="spark", instance="b"): "_x12 900+0x18",
        },
    ),
    *pair(
        "FairleadSparkTasksFail",
        15,
        {
            of_operator(
                "metrics_executor_failedTasks_total", application_name="flights", executor_id="1"
            ): "0+1x15"
        },
        "15 tasks of flights in shop failed within 15 minutes.",
        {"namespace": "shop", "application_name": "flights"},
        {
            of_operator(
                "metrics_executor_failedTasks_total", application_name="flights", executor_id="1"
            ): "0+0x10 2+0x5"
        },
    ),
)
SILENT_TOPICS: Final = (
    *pair(
        "FairleadSilentTopic",
        30,
        {of_broker("fairlead_records_total", topic="orders", direction="in"): "0+5x10 50+0x20"},
        "Topic orders of cluster main in shop received no record for 10 minutes, but some within the last day.",
        {**WHERE, "topic": "orders"},
        {
            of_broker("fairlead_records_total", topic="orders", direction="in"): "0+5x30",
            of_broker("fairlead_records_total", topic="never", direction="in"): "0+0x30",
        },
    ),
)
CASES: Final[tuple[Case, ...]] = (
    *PARTITIONS,
    *QUORUM,
    *STORAGE,
    *ETCD,
    *BROKERS,
    *SECURITY,
    *REQUESTS,
    *GROUPS,
    *TRANSACTIONS,
    *LINKS,
    *SPARK,
    *OPERATOR,
    *SILENT_TOPICS,
)
