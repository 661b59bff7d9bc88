"""Board with the work, the resource usage and the bottlenecks of each broker."""

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
    """Return expression and legend of a gauge with one series for each broker."""
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
            "Records that each broker sent to consumers.",
            "cps",
            per_second("fairlead_records_total", f'{BROKERS}, direction="out"', "broker", "{{broker}}"),
        ),
        graph(
            "Requests",
            "Requests from clients and from other brokers.",
            "reqps",
            per_second("fairlead_request_duration_seconds_count", BROKERS, "broker", "{{broker}}"),
        ),
        graph(
            "Requests passed on",
            "Requests that each broker forwarded to a leader or the controller, by outcome.",
            "reqps",
            (
                f"sum by (broker, outcome) (rate(fairlead_forwarded_requests_total{{{BROKERS}}}{PER_SECOND}))"
                f" or 0 * sum by (broker) (fairlead_build_info{{{BROKERS}}})",
                "{{broker}} {{outcome}}",
            ),
        ),
        graph(
            "Partitions led",
            "Partitions of which each broker is the leader.",
            "short",
            each("fairlead_leader_partitions"),
        ),
        graph(
            "Largest lag of a follower",
            "Largest number of records by which a follower lags behind, among the partitions that the broker leads.",
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
            "Time from the head of a produce request to the end of its answer.",
            "s",
            quantile(0.95, "fairlead_request_duration_seconds", f'{BROKERS}, route=~"produce.*"', "broker"),
        ),
        graph(
            "Fetch latency without waiting, 95 %",
            "Time to read the requested records of a fetch.",
            "s",
            quantile(0.95, "fairlead_fetch_read_seconds", BROKERS, "broker"),
        ),
        graph(
            "Sync latency, 99 %",
            "Duration of one round of syncs over all written partitions, which depends on the disk.",
            "s",
            quantile(0.99, "fairlead_append_fsync_seconds", BROKERS, "broker"),
        ),
        graph(
            "Lateness of the event loop, 99 %",
            "Delay with which timers fire, because work blocks the loop or no processor is available.",
            "s",
            quantile(0.99, "fairlead_event_loop_lag_seconds", BROKERS, "broker"),
        ),
        graph(
            "Batches of one write, 95 %",
            "Batches that were gathered for one write while the disk was busy; the number grows with the load.",
            "short",
            quantile(0.95, "fairlead_append_group_batches", BROKERS, "broker"),
        ),
        graph(
            "Coordination latency by broker, 95 %",
            "Duration of calls to etcd or to the embedded store.",
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
            "Produce calls in progress, and the current limit for such calls, which falls when the event loop is late.",
            "short",
            (f"sum by (broker) (fairlead_produce_calls{{{BROKERS}}})", "{{broker}} under way"),
            (f"sum by (broker) (fairlead_admitted_produce_calls{{{BROKERS}}})", "{{broker}} let in"),
        ),
        graph(
            "Fetches that wait",
            "Fetches that wait for new records (long polls).",
            "short",
            each("fairlead_long_polls_waiting"),
        ),
        graph(
            "Memory held by calls",
            "Memory of request bodies, batches that wait to be appended, and answers that clients have not read.",
            "bytes",
            (f"sum by (broker, of) (fairlead_held_bytes{{{BROKERS}}})", "{{broker}} {{of}}"),
        ),
        graph(
            "Stalled readers",
            "Connections that were closed because the client did not read an answer.",
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
            "Processor time used; 1 means one processor.",
            "short",
            per_second("process_cpu_seconds_total", BROKERS, "broker", "{{broker}}"),
        ),
        graph(
            "Memory",
            "Resident memory of the process, including mapped pages of segments.",
            "bytes",
            each("process_resident_memory_bytes"),
        ),
        graph(
            "Memory used of its limit",
            "Memory that the system cannot reclaim, as a fraction of the memory limit of the process.",
            "percentunit",
            (
                f"sum by (broker) (fairlead_memory_used_bytes{{{BROKERS}}}"
                f" / fairlead_memory_limit_bytes{{{BROKERS}}})",
                "{{broker}}",
            ),
        ),
        graph(
            "Open files and connections",
            "Open file descriptors of the process.",
            "short",
            each("process_open_fds"),
        ),
        graph(
            "Free bytes",
            "Free space on the file system of the data directory.",
            "bytes",
            each("fairlead_disk_free_bytes"),
        ),
        graph(
            "Bytes deleted by retention",
            "Bytes of segments that were deleted from the logs, by reason.",
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
COMPACTION: Final = Row(
    "Compaction",
    (
        graph(
            "Rounds of cleaning",
            "Rounds of cleaning of compacted partitions, by their end.",
            "cps",
            (
                f"sum by (outcome) (rate(fairlead_cleaner_rounds_total{{{BROKERS}}}{PER_SECOND}))",
                "{{outcome}}",
            ),
        ),
        graph(
            "Bytes read and written by the cleaner",
            "Bytes of segments that rounds of cleaning have read or written.",
            "Bps",
            (f"sum(rate(fairlead_cleaner_read_bytes_total{{{BROKERS}}}{PER_SECOND}))", "read"),
            (f"sum(rate(fairlead_cleaner_written_bytes_total{{{BROKERS}}}{PER_SECOND}))", "written"),
        ),
        graph(
            "Highest dirty ratio",
            "Highest share of a compacted partition's log that no round has cleaned.",
            "percentunit",
            each("fairlead_cleaner_dirty_ratio_max"),
        ),
        graph(
            "Partitions that are not cleaned",
            "Compacted partitions whose last round of cleaning failed.",
            "short",
            each("fairlead_cleaner_uncleanable_partitions"),
        ),
    ),
)
SECURITY: Final = Row(
    "Security",
    (
        graph(
            "Refused tokens",
            "Refused tokens by reason; throttled tokens were refused without verification.",
            "cps",
            (
                "sum by (broker, outcome) (rate(fairlead_authentications_total"
                f'{{{BROKERS}, outcome!="accepted"}}{PER_SECOND}))'
                f" or 0 * sum by (broker) (fairlead_build_info{{{BROKERS}}})",
                "{{broker}} {{outcome}}",
            ),
        ),
        graph(
            "Operations that no ACL allows",
            "Operations that were refused, or would be refused in enforce mode (observed is true).",
            "cps",
            (
                f"sum by (broker, observed) (rate(fairlead_access_denied_total{{{BROKERS}}}{PER_SECOND}))"
                f" or 0 * sum by (broker) (fairlead_build_info{{{BROKERS}}})",
                "{{broker}} {{observed}}",
            ),
        ),
        graph(
            "Used quotas",
            "Used fraction of each quota limit; clusters without quotas have none.",
            "percentunit",
            (
                f"max by (subject, limit) (fairlead_quota_used_ratio{{{BROKERS}}})",
                "{{subject}} {{limit}}",
            ),
        ),
        graph(
            "Requests over a quota",
            "Requests that a quota limit refuses; clusters without quotas have none.",
            "cps",
            (
                f"sum by (subject, limit) (rate(fairlead_quota_refused_total{{{BROKERS}}}{PER_SECOND}))",
                "{{subject}} {{limit}}",
            ),
        ),
        graph(
            "Closed connections",
            "Connections that sent no request or only refused tokens, or that exceeded the limit for their address.",
            "cps",
            (
                f"sum by (broker, reason) (rate(fairlead_closed_connections_total{{{BROKERS}}}{PER_SECOND}))"
                f" or 0 * sum by (broker) (fairlead_build_info{{{BROKERS}}})",
                "{{broker}} {{reason}}",
            ),
        ),
        graph(
            "Validity left of certificates",
            "Time until the certificate of a listener ends; brokers without TLS have none.",
            "s",
            (
                f"min by (broker, listener) (fairlead_tls_certificate_expiry_timestamp_seconds{{{BROKERS}}} - time())",
                "{{broker}} {{listener}}",
            ),
        ),
        graph(
            "Age of tokens and ACLs",
            "Time since the coordination store last answered the broker.",
            "s",
            each("fairlead_security_stale_seconds"),
        ),
        graph(
            "Age of issuers' keys",
            "Time since the keys of an issuer were fetched; brokers without issuers have none.",
            "s",
            (
                f"max by (broker, issuer) (fairlead_issuer_keys_age_seconds{{{BROKERS}}})",
                "{{broker}} {{issuer}}",
            ),
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
                    "Replicas that neither lead nor follow; the log of their broker states the reason.",
                    f"sum(fairlead_refused_replicas{{{BROKERS}}})",
                ),
                number(
                    "Quarantined replicas",
                    "Outdated replicas that are the only remaining copy of their partition; they serve no requests.",
                    f"sum(fairlead_quarantined_replicas{{{BROKERS}}})",
                ),
                number(
                    "Least free space",
                    "Fraction of free space on the fullest file system of a data directory.",
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
        COMPACTION,
        SECURITY,
    ),
)
