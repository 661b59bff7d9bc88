"""The brokers side by side: what each does, what it uses, what slows it down."""

from __future__ import annotations

from typing import Final

from boards.vocabulary import (
    BROKER,
    BROKERS,
    CLUSTER_NAME,
    NAMESPACE,
    PER_SECOND,
    Board,
    Row,
    graph,
    number,
    per_second,
    quantile,
)


def each(metric: str) -> tuple[str, str]:
    """Return a gauge of each broker."""
    return f"sum by (broker) ({metric}{{{BROKERS}}})", "{{broker}}"


WORK: Final = Row(
    "Work",
    (
        graph(
            "Records in",
            "Records appended by each leader.",
            "cps",
            per_second("fairlead_records_total", f'{BROKERS}, direction="in"', "broker", "{{broker}}"),
        ),
        graph(
            "Records out",
            "Records answered to readers by each broker.",
            "cps",
            per_second("fairlead_records_total", f'{BROKERS}, direction="out"', "broker", "{{broker}}"),
        ),
        graph(
            "Requests",
            "Requests of clients and of other brokers.",
            "reqps",
            per_second("fairlead_request_duration_seconds_count", BROKERS, "broker", "{{broker}}"),
        ),
        graph(
            "Requests passed on",
            "Requests that this broker passed on to a leader or the controller, by outcome.",
            "reqps",
            (
                f"sum by (broker, outcome) (rate(fairlead_forwarded_requests_total{{{BROKERS}}}{PER_SECOND}))"
                f" or 0 * sum by (broker) (fairlead_build_info{{{BROKERS}}})",
                "{{broker}} {{outcome}}",
            ),
        ),
        graph(
            "Partitions led",
            "Partitions that each broker leads.",
            "short",
            each("fairlead_leader_partitions"),
        ),
        graph(
            "Largest lag of a follower",
            "Records by which the slowest follower lags behind, of the partitions that the broker leads.",
            "short",
            (f"max by (broker) (fairlead_partition_replica_lag_records{{{BROKERS}}})", "{{broker}}"),
        ),
    ),
)
LATENCY: Final = Row(
    "Latency",
    (
        graph(
            "Produce latency, 95 %",
            "From the head of a produce request to the end of its answer.",
            "s",
            quantile(0.95, "fairlead_request_duration_seconds", f'{BROKERS}, route=~"produce.*"', "broker"),
        ),
        graph(
            "Fetch latency without waiting, 95 %",
            "Time of reading what a fetch asks for.",
            "s",
            quantile(0.95, "fairlead_fetch_read_seconds", BROKERS, "broker"),
        ),
        graph(
            "Sync latency, 99 %",
            "One round of syncs over all partitions written to: the disk.",
            "s",
            quantile(0.99, "fairlead_append_fsync_seconds", BROKERS, "broker"),
        ),
        graph(
            "Lateness of the event loop, 99 %",
            "How late timers fire: work that held the loop for too long, or no processor.",
            "s",
            quantile(0.99, "fairlead_event_loop_lag_seconds", BROKERS, "broker"),
        ),
        graph(
            "Batches of one write, 95 %",
            "Batches that were gathered while the disk was busy; it grows with the load.",
            "short",
            quantile(0.95, "fairlead_append_group_batches", BROKERS, "broker"),
        ),
        graph(
            "Coordination latency by broker, 95 %",
            "Calls to etcd or the embedded store.",
            "s",
            quantile(0.95, "fairlead_coordination_seconds", BROKERS, "broker"),
        ),
    ),
)
LOAD: Final = Row(
    "Load",
    (
        graph(
            "Produce calls under way",
            "And how many are let in at the moment; that falls when the event loop is late.",
            "short",
            (f"sum by (broker) (fairlead_produce_calls{{{BROKERS}}})", "{{broker}} under way"),
            (f"sum by (broker) (fairlead_admitted_produce_calls{{{BROKERS}}})", "{{broker}} let in"),
        ),
        graph(
            "Fetches that wait",
            "Long polls without records yet.",
            "short",
            each("fairlead_long_polls_waiting"),
        ),
        graph(
            "Memory held by calls",
            "Bodies, batches to be appended, and answers not yet taken.",
            "bytes",
            (f"sum by (broker, of) (fairlead_held_bytes{{{BROKERS}}})", "{{broker}} {{of}}"),
        ),
        graph(
            "Stalled readers",
            "Connections closed because their readers took nothing of an answer.",
            "cps",
            per_second("fairlead_stalled_readers_total", BROKERS, "broker", "{{broker}}"),
        ),
    ),
)
PROCESS: Final = Row(
    "Process and disk",
    (
        graph(
            "Processor",
            "Processors' time used; 1 is one processor.",
            "short",
            per_second("process_cpu_seconds_total", BROKERS, "broker", "{{broker}}"),
        ),
        graph(
            "Memory",
            "Memory of the process, mapped pages of segments included.",
            "bytes",
            each("process_resident_memory_bytes"),
        ),
        graph(
            "Memory used of its limit",
            "Memory that the system cannot take back, as a share of what the process may use.",
            "percentunit",
            (
                f"sum by (broker) (fairlead_memory_used_bytes{{{BROKERS}}}"
                f" / fairlead_memory_limit_bytes{{{BROKERS}}})",
                "{{broker}}",
            ),
        ),
        graph("Open files and connections", "File descriptors.", "short", each("process_open_fds")),
        graph(
            "Free bytes",
            "On the file system of the data directory.",
            "bytes",
            each("fairlead_disk_free_bytes"),
        ),
        graph(
            "Bytes deleted by retention",
            "Segments that left the logs, by reason.",
            "Bps",
            (
                f"sum by (broker, reason) (rate(fairlead_deleted_bytes_total{{{BROKERS}}}{PER_SECOND}))"
                f" or 0 * sum by (broker) (fairlead_build_info{{{BROKERS}}})",
                "{{broker}} {{reason}}",
            ),
        ),
        graph(
            "Bytes read by the scrub",
            "Stored bytes whose checksums were verified.",
            "Bps",
            per_second("fairlead_scrub_bytes_total", BROKERS, "broker", "{{broker}}"),
        ),
    ),
)
BOARD: Final = Board(
    name="brokers",
    title="Fairlead / Brokers",
    description="Work, latency, load and resources of each broker of a cluster.",
    variables=(NAMESPACE, CLUSTER_NAME, BROKER),
    rows=(
        Row(
            "State",
            (
                number(
                    "Brokers chosen",
                    "Brokers that answer Prometheus.",
                    f"count(fairlead_build_info{{{BROKERS}}})",
                    bad_from=None,
                    bad_below=1,
                ),
                number(
                    "Youngest process",
                    "Time since the last start of a broker.",
                    f"time() - max(process_start_time_seconds{{{BROKERS}}})",
                    unit="s",
                    bad_from=None,
                ),
                number(
                    "Failed data directories",
                    "Brokers that refuse writes until a restart.",
                    f"sum(fairlead_storage_failed{{{BROKERS}}})",
                ),
                number(
                    "Refused replicas",
                    "Replicas that are neither led nor followed; the log says why.",
                    f"sum(fairlead_refused_replicas{{{BROKERS}}})",
                ),
                number(
                    "Quarantined replicas",
                    "Older copies of what was counted on, and the only ones.",
                    f"sum(fairlead_quarantined_replicas{{{BROKERS}}})",
                ),
                number(
                    "Least free space",
                    "Share of the fullest data directory's file system that is free.",
                    f"min(fairlead_disk_free_bytes{{{BROKERS}}} / fairlead_disk_size_bytes{{{BROKERS}}})",
                    unit="percentunit",
                    bad_from=None,
                    bad_below=0.15,
                ),
            ),
        ),
        WORK,
        LATENCY,
        LOAD,
        PROCESS,
    ),
)
